"""Rungs of the ladder that change llama-server's options, and advice on its failures."""
