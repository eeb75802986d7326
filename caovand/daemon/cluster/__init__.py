"""A slot's role in a cluster: standalone, head or worker."""
