"""Data of a run: its splits and the frozen features of their images."""
