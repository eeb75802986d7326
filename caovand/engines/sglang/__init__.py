"""All code that depends on SGLang: its server from the operator's own environment."""
