"""Measure the served model as its clients see it."""
