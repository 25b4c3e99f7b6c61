"""Frozen image features on disk."""
