"""The requests of the control sockets."""
