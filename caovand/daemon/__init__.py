"""The daemon: a single loop that applies events, runs and watches the engine, and serves
requests."""
