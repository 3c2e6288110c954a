"""
`shmloader demo`: the options, and the sizes behind them.

The work is in `demonstration`, which needs the extra `demo` and is imported when the command runs.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from shmloader.cli.command import CommandError, positive_integer, require_extra

SUMMARY = "train on real photographs and move large batches, torch's DataLoader beside shmloader's"

PACKAGES = {
    "rich": "rich",
    "matplotlib": "matplotlib",
    "PIL": "pillow",
    "skimage": "scikit-image",
}


@dataclass(frozen=True)
class Sizes:
    """
    How much the demo does: one training per contender, then rounds of large batches.
    """

    workers: int
    seed: int
    epochs: int
    tiles_per_photograph: int
    batch_size: int
    pool_samples: int
    large_batch_size: int
    large_batches: int
    rounds: int


FULL = Sizes(
    workers=2,
    seed=0,
    epochs=8,
    tiles_per_photograph=160,
    batch_size=64,
    pool_samples=512,
    large_batch_size=64,
    large_batches=24,
    rounds=11,
)
QUICK = replace(FULL, epochs=2, tiles_per_photograph=40, batch_size=32, large_batches=12, rounds=3)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Describe the options of the demo.
    """
    parser.add_argument(
        "--workers",
        type=positive_integer,
        default=FULL.workers,
        help="worker processes of each loader (default: %(default)s)",
    )
    parser.add_argument(
        "--epochs",
        type=positive_integer,
        help=f"epochs of each training (default: {FULL.epochs}; {QUICK.epochs} with --quick)",
    )
    parser.add_argument(
        "--seed", type=int, default=FULL.seed, help="seed of every random choice (default: 0)"
    )
    parser.add_argument("--quick", action="store_true", help="less of everything: some seconds")
    parser.add_argument(
        "--picture",
        type=Path,
        default=Path("shmloader-demo.png"),
        help="where to write the picture (default: ./%(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """
    Run the demo with parsed options.

    Raises:
        CommandError: A package or the picture's directory is missing, or the loaders' batches
            differ.
    """
    require_extra("demo", PACKAGES)
    if not arguments.picture.absolute().parent.is_dir():
        raise CommandError(f"no directory {arguments.picture.parent} to write the picture to")
    from shmloader.cli.demonstration import demonstrate  # only now: it imports the extra

    demonstrate(choose_sizes(arguments), arguments.picture)
    return 0


def choose_sizes(arguments: argparse.Namespace) -> Sizes:
    """
    Turn parsed options into the sizes of this run.
    """
    sizes = QUICK if arguments.quick else FULL
    return replace(
        sizes,
        workers=arguments.workers,
        seed=arguments.seed,
        epochs=arguments.epochs or sizes.epochs,
    )
