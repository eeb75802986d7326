"""Model downloads: a hub's listing, the selection of files, and resuming after an interruption."""
