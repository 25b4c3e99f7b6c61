"""Backbones: one model family, one file; the file name is the registry key. Imported as `negbench.backbones`."""
