"""Requests of the control sockets."""
