"""What cards, links and compilers of a machine can, as far as vLLM uses them."""
