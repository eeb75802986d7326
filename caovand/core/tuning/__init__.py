"""The draft tuner: the cost and yield of each draft depth, and moves to the fastest one."""
