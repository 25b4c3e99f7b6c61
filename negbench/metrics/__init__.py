"""Metrics; only `ranks` sorts."""
