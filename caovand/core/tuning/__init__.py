"""The draft tuner: what each drafting depth costs and yields, and the move to the fastest one."""
