"""Measurements of the kernels on a card: errors against float64, and times against vLLM's own."""
