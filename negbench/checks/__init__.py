"""Checks before anything is trained: what strategies would draw, what data cannot show, and this machine."""
