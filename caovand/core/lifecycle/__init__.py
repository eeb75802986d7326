"""The state machine of one slot: its events, its actions, how often it tries again."""
