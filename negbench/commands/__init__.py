"""The commands as functions, for the command line and for Python: settings in, what was found out."""
