"""The web page's server: a process of its own that reads from the daemon and changes nothing."""
