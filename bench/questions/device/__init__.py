"""Batches on their way to a GPU: `python -m bench device`."""
