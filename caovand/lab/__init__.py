"""Measure a served model from outside, knowing the daemon only by its status and HTTP."""
