"""Plug-ins: names, lazy imports, and Python files read as syntax trees."""
