"""Everything that knows SGLang: its server from an environment of the operator's own."""
