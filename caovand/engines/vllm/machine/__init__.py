"""Capabilities of a machine's cards, links and compilers, as far as vLLM uses them."""
