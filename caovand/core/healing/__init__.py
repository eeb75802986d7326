"""From a failure to a plan that avoids it: the ladder, and the remembered degraded plan."""
