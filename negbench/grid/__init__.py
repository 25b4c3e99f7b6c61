"""Sets of cells: planning, computing, resuming, and what they need."""
