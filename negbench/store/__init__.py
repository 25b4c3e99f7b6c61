"""What is kept of a run: its folder, and the copy of it in MLflow."""
