"""Metrics; `ranks` is the only place that sorts."""
