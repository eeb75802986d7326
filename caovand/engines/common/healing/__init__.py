"""From a cause to advice, rungs of the ladder, and similar public reports, for every engine."""
