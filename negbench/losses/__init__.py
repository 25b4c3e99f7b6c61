"""Losses: one per file; the file name is the registry key."""
