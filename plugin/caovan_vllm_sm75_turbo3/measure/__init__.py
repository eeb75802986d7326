"""The kernels measured on a card: against float64, and in time against vLLM's own."""
