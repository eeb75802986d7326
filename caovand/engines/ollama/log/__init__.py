"""Read the output of `ollama serve`: phases, values, causes.

`engines/common/logs` describes the path from a line to a cause.
"""
