"""What a run reads: its splits and the frozen features of their images."""
