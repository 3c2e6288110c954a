"""
One loader for several trainers, beside a loader of its own for each, and beside TensorSocket.

    python -m bench publish
    python -m bench publish --part rates --trainers 1 --trainers 4 --rounds 3
    python -m bench publish --part deaths

rates: each trainer reads two epochs, the second of which is measured, and drops its batches. The
loads: samples that wait 2 ms, as for a network; samples that compute for 2 ms, as in decoding; and
batches of 38.5 MB that cost nothing to make. All ways have the same number of workers, where each
loader has at least one. Of the batches that a trainer took, those are right that torch's loader
would have given, in its order. CPU and memory are those of all processes; the memory is PSS, in
which what processes share counts once.

deaths: three trainers read two epochs of 40 batches, and something happens when each has taken ten.
Each run has 45 s.

TensorSocket is of the optional extra `peers`, and runs at its defaults over torch's loader.
"""

import argparse

from bench.questions.publish import deaths, rates

PARTS = {"rates": (rates.COLUMNS, rates.records), "deaths": (deaths.COLUMNS, deaths.records)}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this question."""
    parser.add_argument("--load", action="append", choices=rates.LOADS, help="default: all")
    parser.add_argument("--trainers", type=int, action="append", help="default: 1, 2 and 4")
    parser.add_argument("--workers", type=int, default=4, help="in all; default: 4")
    parser.add_argument("--rounds", type=int, default=1)
