"""Downloads models from hubs, and keeps account of what was downloaded."""
