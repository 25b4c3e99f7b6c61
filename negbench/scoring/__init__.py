"""Score models and stored rankings by a benchmark's protocol."""
