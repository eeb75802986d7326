"""From configuration and inventory to the options of llama-server."""
