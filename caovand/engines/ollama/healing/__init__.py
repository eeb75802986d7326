"""Rungs of the ladder that change Ollama's variables, and advice on its failures."""
