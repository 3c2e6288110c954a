"""How little memory a run needs, beside torch's, and what all of its processes take over time."""

from bench.questions.memory.command import main

__all__ = ["main"]
