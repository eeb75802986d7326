"""Decisions without side effects: no clock, socket, file, log or randomness."""
