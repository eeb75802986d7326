"""Search for the best candidate: the space of candidates, the time model and the choice."""
