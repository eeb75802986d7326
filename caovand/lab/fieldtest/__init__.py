"""Compare ways of serving a model on this machine."""
