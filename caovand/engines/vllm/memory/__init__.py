"""The memory that vLLM takes on a card, computed as vLLM computes it."""
