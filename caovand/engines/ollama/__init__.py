"""All code that depends on Ollama: an installed `ollama serve` as the engine."""
