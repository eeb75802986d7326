"""The web page's server: a separate process that reads from the daemon and changes nothing."""
