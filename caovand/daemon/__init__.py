"""The daemon: one loop that applies events, runs the engine, watches it and answers requests."""
