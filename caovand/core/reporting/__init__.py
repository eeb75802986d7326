"""Output for people and programs: status documents, incidents, the wire format."""
