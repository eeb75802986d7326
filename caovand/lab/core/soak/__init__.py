"""Hours of mixed load: what is sent, and what may be concluded from what was seen; pure."""
