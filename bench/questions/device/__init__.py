"""Batches on their way to a GPU: `python -m bench device`."""

from bench.questions.device.command import main as main
