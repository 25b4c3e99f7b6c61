"""The recipes, which `--recipe` takes by name: a package, so that an installed negbench has them too."""
