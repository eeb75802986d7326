"""Read the output of `ollama serve`: phases, figures, causes.

`engines/common/logs` describes the path from a line to a cause.
"""
