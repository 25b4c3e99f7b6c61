"""Data sets: one benchmark per file; the file name is the registry key."""
