"""The recipes, which `--recipe` takes by name: a package, so that an installed negbench has them too.

`papers` has published settings, `worlds` data to compare rules on, `questions` comparisons that settle one question.
"""
