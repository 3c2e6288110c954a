"""
`shmloader bench`: a short comparison with torch's loader by size of batch; or your own head-space.

The full benchmark, with more workloads and contenders, is the folder bench/ of the sources.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import click

from shmloader.cli.command import require_extra
from shmloader.cli.parameters import Seconds

if TYPE_CHECKING:  # rich is imported when the command runs
    from rich.table import Table


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


_EPILOG = """\b
Examples:
  shmloader bench --workers 4
  shmloader bench --headspace train:make_loader --step train:step

\b
Exit status: 1 if a package is missing, if the loaders' batches differ, or if
there is no such function or no batch; 2 for wrong options.
"""


@click.command(epilog=_EPILOG)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Worker processes of each loader.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Timed passes of each loader over each size.",
)
@click.option(
    "--headspace",
    metavar="MODULE:FUNCTION",
    help="Compare nothing: take the loader that this function returns, and say how fast your step "
    "runs with it, and how fast it would run if data were free.",
)
@click.option(
    "--step",
    metavar="MODULE:FUNCTION",
    help="What is done with each batch: a function of the batch. With --headspace.",
)
@click.option(
    "--seconds",
    type=Seconds(min=1),
    default=30.0,
    show_default=True,
    help="About how long --headspace takes, besides the start of the workers.",
)
def bench(
    workers: int, rounds: int, headspace: str | None, step: str | None, seconds: float
) -> None:
    """
    Move batches of four sizes with torch's DataLoader and with shmloader's, in half a minute.

    With --headspace, your own loader and step: what there is to gain before you change anything.
    """
    require_extra("cli", {"rich": "rich"})
    if step and not headspace:
        raise click.UsageError("--step goes with --headspace")
    from rich.console import Console  # only now: it is an extra

    console = Console(highlight=False)
    if headspace:
        from shmloader.cli.headspace.command import measure_headspace

        console.print(measure_headspace(headspace, step, seconds), soft_wrap=True)
    else:
        console.print(measure(workers, rounds))


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
