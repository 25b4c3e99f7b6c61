"""Optuna studies over the knobs of a strategy."""
