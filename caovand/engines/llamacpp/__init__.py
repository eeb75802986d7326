"""All code that depends on llama.cpp."""
