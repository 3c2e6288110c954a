"""What goes with each sample: random numbers, and what happens when one raises."""
