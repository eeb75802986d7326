"""Hours of mixed load: what to send, and what to conclude from the observations. Pure."""
