"""Rungs of the ladder that change variables of Ollama, and advice on its failures."""
