"""The configuration: its keys, rules and text."""
