"""What a command meets on its machine: files, memory and disk, signals."""
