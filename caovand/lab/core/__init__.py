"""The requests to send, and the meaning of the answers. Pure, like `caovand.core`."""
