"""`python -m negbench` is `negbench`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder, which `negbench` and its workers do without, too

from negbench.cli.main import main

main()
