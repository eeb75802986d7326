"""Reads the output of llama-server: phases, figures, causes."""
