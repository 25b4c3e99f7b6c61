"""Strategies: one paper, one file; the file name is the registry key. Imported as `negbench.strategies`."""
