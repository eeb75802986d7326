"""From configuration and inventory to the variables of `ollama serve`."""
