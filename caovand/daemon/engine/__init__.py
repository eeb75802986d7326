"""The run of one engine: its process, proof, figures and output."""
