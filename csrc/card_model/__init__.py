"""A model of the RTX 2080 Ti: predicts the time of a kernel from its machine code and shape."""
