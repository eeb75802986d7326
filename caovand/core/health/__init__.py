"""Interpret observations of a child: progress, stalls, hangs, trends."""
