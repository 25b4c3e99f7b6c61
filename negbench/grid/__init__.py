"""Plan, compute and resume sets of cells."""
