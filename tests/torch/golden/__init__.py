"""Runs of torch's DataLoader and of ours under the same seeds, recorded and compared."""
