"""What an engine is to the rest of caovan: one record, in parts."""
