"""A buffer of 1,000 batches that is filled while the training is elsewhere."""
