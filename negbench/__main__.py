"""`python -m negbench` is `negbench`."""

from negbench.cli.main import main

main()
