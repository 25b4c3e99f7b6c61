"""Which strategies can be expected to do well on a data set: its regime card beside mapped worlds."""
