"""A buffer of 1,000 batches that is filled while the training is elsewhere."""

from bench.questions.deep.command import main

__all__ = ["main"]
