"""The world turned into core types: an adapter is a file, or a folder with one face."""
