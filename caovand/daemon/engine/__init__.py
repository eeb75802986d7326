"""The run of one engine: its process, proof, metrics and output."""
