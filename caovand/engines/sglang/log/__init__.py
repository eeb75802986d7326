"""Read the output of SGLang: phases, figures, causes.

`engines/common/logs` describes the path from a line to a cause.
"""
