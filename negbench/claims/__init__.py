"""The papers' claims about negatives as data, and whether a data set and a backbone bear them out."""
