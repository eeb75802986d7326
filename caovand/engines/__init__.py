"""What is peculiar to each inference engine, as data and pure functions."""
