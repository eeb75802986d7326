"""Rungs of the ladder that change vLLM's settings, and advice on vLLM's failures."""
