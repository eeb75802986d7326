"""The memory that SGLang will take."""
