"""The table of boxes: for machines and models, what an expert would run and what is planned."""
