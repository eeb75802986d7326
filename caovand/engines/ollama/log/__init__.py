"""Reads the output of `ollama serve`: phases, figures, causes."""
