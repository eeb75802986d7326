"""Measuring a served model as its clients see it; pure."""
