"""Gather the facts that this machine reports to the head of its cluster."""

from caovand.adapters.node_facts.gather import read

__all__ = ["read"]
