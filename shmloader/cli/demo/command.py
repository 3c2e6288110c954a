"""
`shmloader demo`: the options.

The work is in `show`, which needs the extra `demo` and is imported when the command runs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from shmloader.cli.command import CommandError, require_extra
from shmloader.cli.demo.sizes import FULL, QUICK, Sizes

PACKAGES = {
    "rich": "rich",
    "matplotlib": "matplotlib",
    "PIL": "pillow",
    "skimage": "scikit-image",
}


@click.command(
    help="Train a small network on real photographs and move large batches, with torch's DataLoader"
    " and with shmloader's, and draw what both took.",
    epilog="Example: shmloader demo --quick --workers 4. Exit status: 1 if a package or the "
    "picture's folder is missing, or if the batches of the two loaders differ.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=FULL.workers,
    show_default=True,
    help="Worker processes of each loader.",
)
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    help=f"Epochs of each training; {FULL.epochs} by default, {QUICK.epochs} with --quick.",
)
@click.option(
    "--seed", type=int, default=FULL.seed, show_default=True, help="Seed of every random choice."
)
@click.option("--quick", is_flag=True, help="Less of everything: some seconds.")
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    default=Path("shmloader-demo.png"),
    show_default=True,
    help="Where to write the picture.",
)
def demo(workers: int, epochs: int | None, seed: int, quick: bool, picture: Path) -> None:
    """Run the demo."""
    require_extra("demo", PACKAGES)
    if not picture.absolute().parent.is_dir():
        raise CommandError(f"no directory {picture.parent} to write the picture to")
    from shmloader.cli.demo.show import demonstrate  # only now: it imports the extra

    demonstrate(choose_sizes(workers, epochs, seed, quick), picture)


def choose_sizes(workers: int, epochs: int | None, seed: int, quick: bool) -> Sizes:
    """Turn the options into the sizes of this run."""
    sizes = QUICK if quick else FULL
    return replace(sizes, workers=workers, seed=seed, epochs=epochs or sizes.epochs)
