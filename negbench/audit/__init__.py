"""What strategies would draw, without any training."""
