"""`cached()`: the speed of a warm epoch, memory by workers, and what is found if not all fits."""

from bench.questions.caching.command import main

__all__ = ["main"]
