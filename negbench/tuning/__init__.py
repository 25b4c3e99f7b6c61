"""Optuna studies over the options of a strategy."""
