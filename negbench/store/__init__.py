"""Storage of runs: their folders, and the copies in MLflow."""
