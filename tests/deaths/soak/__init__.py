"""
Thousands of batches while workers die: the same bits as without deaths, and nothing grows.

    python -m tests.deaths.soak                             10,000 batches, 5 kills a second
    python -m tests.deaths.soak --phase persistent          one way of using a loader
    python -m tests.deaths.soak --batches 300 --period 0.1 --kills 20        as in the tests

Each phase uses a loader in another way. Its batches are hashed three times: in a run without
deaths, with torch's own loader (the first quarter), and while a process that knows nothing of the
trainer's progress kills a worker every so often. The three must agree batch by batch. During the
last one samples are taken of all that the processes hold; the first quarter's median is compared
with the last quarter's. When the loaders are closed, everything must be as it was before.
"""

from __future__ import annotations


def main(arguments: list[str]) -> int:
    """Run the soak; the exit code is 0 if every batch was right and nothing grew."""
    # Not at the top: the killer is a module of this package too, and does without torch.
    from tests.deaths.soak.command import run

    return run(arguments)
