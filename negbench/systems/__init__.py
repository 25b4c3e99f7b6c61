"""Published systems whole: strategy, loss, backbone options, schedule and extra terms, one TOML file each.

A *part* of a system may need what a backbone or a data set does not have; it is then left out, and said so.
"""
