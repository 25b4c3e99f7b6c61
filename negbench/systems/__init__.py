"""Complete published systems: strategy, loss, backbone options, schedule and extra terms, one TOML file each.

A *part* of a system may need something that a backbone or data set lacks; it is then left out with a remark.
"""
