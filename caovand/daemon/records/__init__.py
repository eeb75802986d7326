"""The daemon's data on disk: history, incidents, memories."""
