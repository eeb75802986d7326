"""From a start request to the engine's process: checks, plan, rungs."""
