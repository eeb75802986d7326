"""vLLM's log: lines, phases, the texts of failures, and the first cause among them."""
