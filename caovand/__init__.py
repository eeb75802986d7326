"""caovand: keeps one vLLM server running and correctly configured."""

__version__ = "0.1.0"
