"""An engine's environment, output and last evidence."""
