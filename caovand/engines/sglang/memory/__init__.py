"""What SGLang will hold in memory."""
