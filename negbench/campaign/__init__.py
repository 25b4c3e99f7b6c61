"""What is computed next: courses, which ask for cells and are told what became of them, and the loop that does it."""
