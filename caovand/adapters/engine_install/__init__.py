"""Engine environments: vLLM and its dependencies, made from a lock file, proven, switched
atomically.

This room uses only the standard library: it must run on a machine on which nothing else is
installed yet.
"""
