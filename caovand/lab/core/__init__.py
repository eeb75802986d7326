"""What is sent, and what the answers mean; pure, as `core` is."""
