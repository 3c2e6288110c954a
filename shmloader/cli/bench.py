"""
`shmloader bench`: a short comparison with torch's loader by size of batch.

The full benchmark, with more workloads and contenders, is the folder bench/ of the sources.
"""

import argparse
from collections.abc import Sequence

from shmloader.cli.command import parser_of, positive

# The samples' shape, how many different ones, and how many make a batch and batches a pass.
SIZES: tuple[tuple[tuple[int, ...], int, int, int], ...] = (
    ((8,), 65536, 1, 1500),
    ((3, 32, 32), 8192, 32, 300),
    ((3, 224, 224), 256, 16, 60),
    ((3, 224, 224), 256, 64, 24),
)

_DESCRIPTION = (
    "Move batches of four sizes with torch's DataLoader and with shmloader's, in half a minute."
)
_EPILOG = """\
example:
  shmloader bench --workers 4

exit status: 1 if the loaders' batches differ; 2 for wrong options.
"""


def main(arguments: Sequence[str]) -> int:
    """Compare the loaders, and return the exit status."""
    chosen = _parser().parse_args(arguments)
    print("\n".join(measure(chosen.workers, chosen.rounds)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("bench", _DESCRIPTION, _EPILOG)
    about = (
        ("--workers", 2, "worker processes of each loader"),
        ("--rounds", 5, "timed passes of each loader over each size"),
    )
    for flag, default, meaning in about:
        meaning += " (default: %(default)s)"
        parser.add_argument(flag, type=positive, metavar="N", default=default, help=meaning)
    return parser


def measure(workers: int, rounds: int) -> list[str]:
    """Move batches of every size with both loaders, check them, and say what they took."""
    from shmloader.cli.comparison import Load, compared, middle, move_batches, table

    rows, remarks = [], []
    for size in SIZES:
        load = Load(*size, rounds, workers).fitting()
        took = {by: middle(passes) for by, passes in move_batches(load, lambda: None).items()}
        rows += [(load.title, by, each) for by, each in took.items()]
        remarks.append(f"{load.title}: {compared(*took.values())}")
    heading = f"{workers} workers; the pass of median duration of {rounds} passes in turns"
    return [heading, *table("a batch", rows), *remarks]
