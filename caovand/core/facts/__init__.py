"""Facts about a machine: cards, host, engine, model, and memory that other processes use."""
