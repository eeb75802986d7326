"""Forecast a plan's memory by device."""
