"""Everything that knows SGLang: its server, from an environment provided by the operator."""
