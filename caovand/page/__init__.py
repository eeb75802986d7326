"""The web page's server: a process of its own, which reads from the daemon and changes nothing."""
