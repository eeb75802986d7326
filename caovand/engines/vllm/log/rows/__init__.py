"""Texts that vLLM prints when it fails, by what they are about; `signatures.py` has the order."""
