"""Admission to the daemon's sockets: who may connect, and how much each client may use."""
