"""Everything that knows llama.cpp."""
