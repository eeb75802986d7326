"""Rungs of the ladder that change options of llama-server, and advice on its failures."""
