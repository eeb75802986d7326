"""The search for the best candidate: what it may choose, how long each takes, which is best."""
