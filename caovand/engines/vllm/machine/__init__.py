"""Capabilities of a machine's cards, links and compilers that matter to vLLM."""
