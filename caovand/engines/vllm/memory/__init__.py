"""The memory that vLLM uses on a card, computed as vLLM computes it."""
