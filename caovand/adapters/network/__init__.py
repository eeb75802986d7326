"""Sockets, ports and addresses; the link between the nodes of a cluster."""
