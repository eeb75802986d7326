"""Knowledge about each inference engine, as data and pure functions."""
