"""Access to the machine: files, memory and disk, signals."""
