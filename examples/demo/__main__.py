"""
`make demo`: a training on photographs, then large batches, with torch's loader and with ours.

All batches and losses are compared; the tables are those of `shmloader run --compare`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.progress import Progress

from examples.demo.moving import (
    CONTENDERS,
    Load,
    check_same_batches,
    fitting_batch_size,
    middle,
    move_batches,
)
from examples.demo.photographs import CROP_PIXELS, PHOTOGRAPHS, SAMPLE_BYTES, PhotographTiles
from examples.demo.picture import draw
from examples.demo.training import Training
from shmloader.cli.command import CommandError, require_folder_of
from shmloader.cli.run.epochs import OURS, TORCHS, Took
from shmloader.cli.run.table import compared, table

_SETTLE_S = 0.2  # off the clock, while workers finish what they do at an epoch's end
_CONSOLE = Console(stderr=True)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="make demo", description=demo.__doc__)
    parser.add_argument("--workers", type=positive, default=2, help="default: 2")
    parser.add_argument("--epochs", type=positive, help="at least 2; default: 8, 2 with --quick")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--quick", action="store_true", help="less of everything: some seconds")
    parser.add_argument(
        "--picture",
        type=Path,
        default=Path("shmloader-demo.png"),
        help="where to write the picture; default: shmloader-demo.png",
    )
    chosen = parser.parse_args()
    if chosen.epochs == 1:
        parser.error("--epochs: the first one is not counted, so two are needed")
    demo(chosen.workers, chosen.epochs, chosen.seed, chosen.quick, chosen.picture)


def positive(text: str) -> int:
    """Parse an argument that is a whole number above 0."""
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")


def demo(workers: int, epochs: int | None, seed: int, quick: bool, picture: Path) -> None:
    """Train a small network on photographs and move large batches with both loaders."""
    try:
        require_folder_of(picture)
        # The same sums in the same order, and cores left to the workers.
        torch.set_num_threads(1)
        trainings = train(workers, epochs or (2 if quick else 8), seed, 40 if quick else 160)
        load = Load((3, 224, 224), 512, 64, 12 if quick else 24, 3 if quick else 11, workers)
        passes = move(load.fitting())
        setting = f"workers {workers}, torch {torch.__version__}"
        draw(trainings, passes, load.fitting().title, setting, picture)
    except CommandError as error:
        sys.exit(f"demo: {error}")
    print(f"\nPicture: {picture}")


def train(workers: int, epochs: int, seed: int, tiles_per_photograph: int) -> list[Training]:
    """
    Train an epoch with each loader, check it, and so on: a noisy minute hits both.

    Raises:
        CommandError: The loaders' batches or losses differ.
    """
    dataset = PhotographTiles(tiles_per_photograph)
    batch_size = fitting_batch_size(64, SAMPLE_BYTES, workers)
    title = f"{len(dataset)} JPEG tiles of {len(PHOTOGRAPHS)} photographs, batch_size {batch_size}"
    print(f"Training: {title}, {workers} persistent workers")
    trainings = [
        Training(
            name,
            kind(
                dataset,
                batch_size=batch_size,
                shuffle=True,
                num_workers=workers,
                persistent_workers=True,
                # Its own: the other loader's epochs in between must not shift this one's.
                generator=torch.Generator().manual_seed(seed),
            ),
            seed,
        )
        for name, kind in CONTENDERS.items()
    ]
    _warm_up(batch_size)
    with progress_bar("training", epochs * len(trainings)) as advance:
        for number in range(1, epochs + 1):
            for training in trainings:
                training.run_epoch()
                time.sleep(_SETTLE_S)
                advance()
            _check_epoch(f"epoch {number}", trainings)
            print(f"  epoch {number} of {epochs}: {_last_epoch(trainings)}")
    for training in trainings:
        del training.loader  # its workers end
    steps = trainings[0].took.batches
    print(f"Checked: all {steps} batches are the same bit for bit, and so is every loss.\n")
    _say("photographs", {training.name: training.took for training in trainings})
    for training in trainings:
        print(f"{training.name}: {_figures(training)}")
    return trainings


@contextmanager
def progress_bar(text: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar in a terminal, without a thread: workers are forked beside it. Yields a step."""
    with Progress(
        console=_CONSOLE, transient=True, auto_refresh=False, disable=not _CONSOLE.is_terminal
    ) as progress:
        task = progress.add_task(text, total=total)
        yield lambda: progress.update(task, advance=1, refresh=True)


def _warm_up(batch_size: int) -> None:
    """Let torch set up its kernels, so that the first loader does not pay for it."""
    training = Training("", torch.utils.data.DataLoader([]), 0)
    for _ in range(2):
        images = torch.rand(batch_size, 3, CROP_PIXELS, CROP_PIXELS)
        training.learn(images, torch.zeros(batch_size, dtype=torch.int64))


def _check_epoch(what: str, trainings: list[Training]) -> None:
    digests = {each.name: [step.digest for step in each.epochs[-1]] for each in trainings}
    check_same_batches(what, digests)
    losses = [[step.loss for step in each.epochs[-1]] for each in trainings]
    for number, (expected, actual) in enumerate(zip(*losses, strict=True), start=1):
        if expected != actual:
            raise CommandError(
                f"{what}: the batches are the same, but the loss of step {number} is {expected!r} "
                f"with {trainings[0].name} and {actual!r} with {trainings[1].name}"
            )


def _last_epoch(trainings: list[Training]) -> str:
    times = [f"{training.name} {training.epoch_times_s[-1]:.2f} s" for training in trainings]
    steps = trainings[0].epochs[-1]
    return f"{', '.join(times)}, mean loss {sum(step.loss for step in steps) / len(steps):.4f}"


def _figures(training: Training) -> str:
    edge_s = median(epoch[0].wait_s for epoch in training.epochs[1:])
    last = training.epochs[-1]
    correct = sum(step.correct for step in last) / len(last)
    return (
        f"{median(training.epoch_times_s):.2f} s an epoch, {training.waiting_share:.1%} of it "
        f"waiting; {edge_s * 1e3:.1f} ms at the first step of later epochs; "
        f"{correct:.1%} correct in the last one"
    )


def move(load: Load) -> dict[str, list[Took]]:
    """
    Move large batches with both loaders.

    Raises:
        CommandError: The loaders' batches differ.
    """
    print(f"\nLarge batches: {load.title}, ready-made samples")
    with progress_bar("large batches", load.rounds * len(CONTENDERS)) as advance:
        passes = move_batches(load, advance)
    print(f"Checked: all {load.batches} batches are the same bit for bit.\n")
    _say("large batches", {name: middle(each) for name, each in passes.items()})
    return passes


def _say(title: str, took: dict[str, Took]) -> None:
    lines = table("what", [(title, by, each) for by, each in took.items()])
    print("\n".join([*lines, f"shmloader {compared(took[TORCHS], took[OURS])}"]))


if __name__ == "__main__":
    main()
