"""The state machine of one slot: its events, its actions and its back-off."""
