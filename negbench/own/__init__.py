"""Negatives for your own data: mining, embedding, and recipes made from a folder."""
