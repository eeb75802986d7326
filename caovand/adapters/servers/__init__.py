"""The servers that the daemon starts, and its metrics."""
