"""The memory that SGLang will use."""
