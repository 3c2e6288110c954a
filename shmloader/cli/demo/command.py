"""
`shmloader demo`: the options.

The work is in `show`, which needs the extra `demo` and is imported when the command runs.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from shmloader.cli.command import CommandError, positive_integer, require_extra
from shmloader.cli.demo.sizes import FULL, QUICK, Sizes

SUMMARY = "train on real photographs and move large batches, torch's DataLoader beside shmloader's"

PACKAGES = {
    "rich": "rich",
    "matplotlib": "matplotlib",
    "PIL": "pillow",
    "skimage": "scikit-image",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the demo."""
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
    from shmloader.cli.demo.show import demonstrate  # only now: it imports the extra

    demonstrate(choose_sizes(arguments), arguments.picture)
    return 0


def choose_sizes(arguments: argparse.Namespace) -> Sizes:
    """Turn parsed options into the sizes of this run."""
    sizes = QUICK if arguments.quick else FULL
    return replace(
        sizes,
        workers=arguments.workers,
        seed=arguments.seed,
        epochs=arguments.epochs or sizes.epochs,
    )
