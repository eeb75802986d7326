"""A model of the RTX 2080 Ti: how long a kernel takes there, from machine code and shape."""
