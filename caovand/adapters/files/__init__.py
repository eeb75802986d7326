"""Files: the daemon's own, and those that another user may have planted."""
