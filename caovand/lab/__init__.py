"""Measures a served model from outside: it knows the daemon by its status and HTTP alone."""
