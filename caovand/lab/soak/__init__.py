"""Load the served model for hours, and judge what was observed."""
