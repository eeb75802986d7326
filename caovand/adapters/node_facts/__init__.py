"""What this machine reports of itself to the head of its cluster."""

from caovand.adapters.node_facts.gather import read

__all__ = ["read"]
