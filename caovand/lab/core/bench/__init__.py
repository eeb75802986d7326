"""Measure a served model as its clients see it. Pure."""
