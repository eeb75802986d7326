"""From a failure to a plan that avoids it: the ladder, and the degraded plan that is kept."""
