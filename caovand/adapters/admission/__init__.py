"""Who comes in at a socket of the daemon's, and how much each may use up."""
