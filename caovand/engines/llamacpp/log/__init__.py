"""Read the output of llama-server: phases, values, causes.

`engines/common/logs` describes the path from a line to a cause.
"""
