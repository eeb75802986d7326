"""From the request to serve to the engine's process: checks, plan, rungs."""
