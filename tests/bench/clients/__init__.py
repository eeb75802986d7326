"""`make bench-clients`: what clients see while engine, gateway and daemon fail."""
