"""The servers that the daemon starts, and its figures as metrics."""
