"""Samples behind a network: what helps is requests in flight, not batches ahead."""

from bench.questions.streaming.command import main

__all__ = ["main"]
