"""Data sets that people made, one file each; the file name is the registry key."""
