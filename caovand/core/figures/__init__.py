"""What an engine does, in figures: read once, added up over restarts, as rates and quantiles."""
