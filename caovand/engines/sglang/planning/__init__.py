"""Plans for SGLang: options with reasons."""
