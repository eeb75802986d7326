"""What happens between the wish to serve and the engine's process: checks, plan, rungs."""
