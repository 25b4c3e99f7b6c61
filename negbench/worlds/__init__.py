"""Data sets that are generated or drawn, where every relevant image is known; the file name is the registry key."""
