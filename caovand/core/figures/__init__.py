"""An engine's metrics: read once, accumulated over restarts, presented as rates and quantiles."""
