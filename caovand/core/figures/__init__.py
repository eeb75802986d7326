"""An engine's figures: read once, accumulated over restarts, presented as rates and quantiles."""
