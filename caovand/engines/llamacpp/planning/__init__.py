"""From configuration and inventory to llama-server's options."""
