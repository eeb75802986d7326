"""Everything that knows SGLang: its server from the operator's own environment."""
