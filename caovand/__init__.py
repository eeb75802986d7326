"""caovand: keeps one LLM server running and correctly configured."""

from pathlib import Path

__version__ = "0.1.0"
HOME = str(Path(__file__).parents[1])
"""The folder with this package, which an isolated Python does not find by itself."""
