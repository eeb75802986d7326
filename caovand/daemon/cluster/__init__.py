"""A slot's part in a cluster: alone, the head, or a worker."""
