"""Training one run: the loop, its objective, the run's folder and its record."""
