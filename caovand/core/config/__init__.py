"""The configuration: its keys, rules and file format."""
