"""What a list of records costs beside workers: memory, start, reads, and files."""

from bench.questions.lists.command import main

__all__ = ["main"]
