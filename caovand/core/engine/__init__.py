"""The interface between caovan and an engine: one record, in parts."""
