"""Reads the output of SGLang: phases, figures, causes."""
