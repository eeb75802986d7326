"""Engine environments: vLLM and all it needs, made from a lock file, proven, switched atomically.

Only the standard library is used here: this must run on a machine that has nothing else yet.
"""
