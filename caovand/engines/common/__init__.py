"""Shared by all engines: log texts of the host's own failures."""
