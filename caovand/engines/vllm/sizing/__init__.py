"""The search for the best way of running: what is open, how long it takes, and which is best."""
