"""
`shmloader bench`: a short comparison with torch's loader by size of batch; needs one extra, rich.

The full benchmark, with more workloads and contenders, is the folder bench/ of the sources.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shmloader.cli.command import positive_integer, require_extra

if TYPE_CHECKING:  # an extra, which need not be there before the command runs
    from rich.table import Table

SUMMARY = "move batches of four sizes, torch's DataLoader beside shmloader's, in half a minute"


class Size(NamedTuple):
    """What one row of the table is about: the samples, and how many make a batch and a pass."""

    shape: tuple[int, ...]
    pool_samples: int
    batch_size: int
    batches: int


SIZES = (
    Size((8,), 65536, 1, 1500),
    Size((3, 32, 32), 8192, 32, 300),
    Size((3, 224, 224), 256, 16, 60),
    Size((3, 224, 224), 256, 64, 24),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the benchmark."""
    parser.add_argument(
        "--workers",
        type=positive_integer,
        default=2,
        help="worker processes of each loader (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=positive_integer,
        default=5,
        help="timed passes of each loader over each size (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """
    Run the benchmark with parsed options, and print its table.

    Raises:
        CommandError: A package is missing, or the loaders' batches differ.
    """
    require_extra("bench", {"rich": "rich"})
    from rich.console import Console  # only now: it is an extra

    Console(highlight=False).print(measure(arguments.workers, arguments.rounds))
    return 0


def measure(workers: int, rounds: int) -> Table:
    """
    Move batches of every size with both loaders, check them, and make the table.

    Raises:
        CommandError: The loaders' batches differ.
    """
    from rich.table import Table

    table = Table(title=f"ms per batch, median of {rounds} passes, {workers} workers")
    for heading in ("a batch", "MB", "torch", "shmloader", "times torch"):
        table.add_column(heading, justify="right")
    table.add_column("trainer CPU ms: torch, ours", justify="right")
    for size in SIZES:
        table.add_row(*measure_size(size, workers, rounds))
    return table


def measure_size(size: Size, workers: int, rounds: int) -> list[str]:
    """Move batches of one size with both loaders, check them, and make a row of the table."""
    from shmloader.cli.comparison.contenders import check_same_batches
    from shmloader.cli.comparison.moving import Load, move_batches
    from shmloader.cli.comparison.shared_memory import fitting_batch_size

    load = Load(*size, rounds, workers)
    load = replace(load, batch_size=fitting_batch_size(size.batch_size, load.sample_bytes, workers))
    torchs, ours = move_batches(load, lambda: None)
    check_same_batches(f"batches of {load.batch_size} × {load.shape}", torchs.digests, ours.digests)
    return [
        f"{load.batch_size} × {load.shape}",
        f"{ours.batch_bytes / 1e6:.5g}",
        f"{torchs.batch_s * 1e3:.3f}",
        f"{ours.batch_s * 1e3:.3f}",
        f"{torchs.batch_s / ours.batch_s:.1f}",
        f"{torchs.batch_cpu_s * 1e3:.3f}, {ours.batch_cpu_s * 1e3:.3f}",
    ]
