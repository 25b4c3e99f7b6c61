"""`python -m negbench` is `negbench`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder: neither `negbench` nor its workers import from it

from negbench.cli.main import main

main()
