"""
`shmloader bench`: a short comparison with torch's loader by size of batch; or your own head-space.

The full benchmark, with more workloads and contenders, is the folder bench/ of the sources.
"""

from __future__ import annotations

import click

from shmloader.cli.command import require_extra
from shmloader.cli.parameters import Seconds

# The samples' shape, how many different ones, and how many make a batch and batches a pass.
SIZES: tuple[tuple[tuple[int, ...], int, int, int], ...] = (
    ((8,), 65536, 1, 1500),
    ((3, 32, 32), 8192, 32, 300),
    ((3, 224, 224), 256, 16, 60),
    ((3, 224, 224), 256, 64, 24),
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
    if step and not headspace:
        raise click.UsageError("--step goes with --headspace")
    if headspace:
        require_extra("cli", {"rich": "rich"})
        from shmloader.cli.headspace.command import measure_headspace  # only now: it is an extra

        click.echo(measure_headspace(headspace, step, seconds))
    else:
        click.echo("\n".join(measure(workers, rounds)))


def measure(workers: int, rounds: int) -> list[str]:
    """
    Move batches of every size with both loaders, check them, and say what they took.

    Raises:
        CommandError: The loaders' batches differ.
    """
    from shmloader.cli.comparison import Load, compared, middle, move_batches, table

    rows, remarks = [], []
    for size in SIZES:
        load = Load(*size, rounds, workers).fitting()
        took = {by: middle(passes) for by, passes in move_batches(load, lambda: None).items()}
        rows += [(load.title, by, each) for by, each in took.items()]
        remarks.append(f"{load.title}: {compared(*took.values())}")
    heading = f"{workers} workers; of {rounds} passes in turns, the one of median duration"
    return [heading, *table("a batch", rows), *remarks]
