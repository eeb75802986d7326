"""The NVIDIA cards: their properties, their current state, and all-reduce between them."""
