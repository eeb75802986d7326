"""One engine's run: its process, proof, figures and lines."""
