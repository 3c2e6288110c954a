"""Waits behind slow samples, beside a loop without any overhead: `python -m bench stalls`."""

from bench.questions.stalls.command import main as main
