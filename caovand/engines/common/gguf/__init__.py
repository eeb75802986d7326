"""The memory that ggml allocates for a model in GGUF files, and the context and placement."""
