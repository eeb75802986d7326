"""The outside world as core types: an adapter is a file, or a folder with one interface."""
