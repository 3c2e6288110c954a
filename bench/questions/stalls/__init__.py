"""Waits behind slow samples, beside the best that any loader could do: `python -m bench stalls`."""

from bench.questions.stalls.command import main as main
