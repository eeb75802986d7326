"""The trials and the report of `caovanctl fieldtest`."""
