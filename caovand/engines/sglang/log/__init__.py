"""Read the output of SGLang: phases, values, causes.

`engines/common/logs` describes the path from a line to a cause.
"""
