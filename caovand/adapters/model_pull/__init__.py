"""Download models from hubs, and record what was downloaded."""
