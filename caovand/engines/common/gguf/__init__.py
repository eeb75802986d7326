"""Memory, context and placement of models in GGUF files that ggml runs."""
