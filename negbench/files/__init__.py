"""Readers of files that people bring: annotations, tables of rows and triplets, vectors, images."""
