"""The papers' claims about negatives as data, and tests of them on a data set and a backbone."""
