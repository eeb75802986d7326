"""What the daemon keeps on disk: history, incidents, memories."""
