"""What is sent, and what the answers mean. Pure, like `caovand.core`."""
