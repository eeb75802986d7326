"""Forecasts the memory of a plan, by device."""
