"""The NVIDIA cards: what they are, what they do, and all-reduce between them."""
