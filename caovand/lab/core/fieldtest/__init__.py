"""What `caovanctl fieldtest` tries on a machine, and what it reports."""
