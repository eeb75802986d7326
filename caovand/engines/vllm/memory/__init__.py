"""vLLM's use of a card's memory, computed as vLLM computes it."""
