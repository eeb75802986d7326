"""The table of boxes: for machines and models, an expert's choice and the plan."""
