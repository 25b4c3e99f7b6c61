"""Pools and negatives of every query: streaming, drawing, statistics, score curves."""
