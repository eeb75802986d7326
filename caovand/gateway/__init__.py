"""The gateway, a separate process: one address for clients, whichever engine serves."""
