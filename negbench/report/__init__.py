"""Self-contained reports of a comparison, a study or a run."""
