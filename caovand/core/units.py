"""Units of memory and of time."""

MIB = 1 << 20
GIB = 1 << 30
DAY_S = 86_400
