"""Self-contained reports of a comparison."""
