"""What vLLM takes of a card's memory, computed as vLLM computes it."""
