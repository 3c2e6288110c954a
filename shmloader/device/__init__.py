"""Batches on an accelerator: copies ahead of the training step, from slots that it may read."""
