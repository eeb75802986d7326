"""Programs for an engine's own Python; nothing here imports anything of caovan."""
