"""A slot's part in a cluster: standalone, head or worker."""
