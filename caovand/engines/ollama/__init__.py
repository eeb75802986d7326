"""Everything that knows Ollama: an installed `ollama serve` as the engine."""
