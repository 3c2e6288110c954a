"""The demo itself: two trainings, then large batches, checked, as tables and a picture."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from shmloader.cli.command import CommandError
from shmloader.cli.comparison.contenders import CONTENDERS, check_same_batches
from shmloader.cli.comparison.moving import Load, Transfer, move_batches
from shmloader.cli.comparison.shared_memory import fitting_batch_size
from shmloader.cli.demo import photographs
from shmloader.cli.demo.picture import draw
from shmloader.cli.demo.sizes import Sizes
from shmloader.cli.demo.tables import training_table, transfer_table
from shmloader.cli.demo.training import Step, Training, one_thread, warm_up
from shmloader.cli.progress import progress_bar

LARGE_SHAPE = (3, 224, 224)
_SETTLE_S = 0.2  # off the clock, while workers finish what is fetched for the next epoch

# Beyond torch's arguments. It is off by default, because only a sampler of torch's kinds is sure to
# be foretold without side effects.
_OPTIONS = {"shmloader": {"overlap_epochs": True}}


def demonstrate(sizes: Sizes, picture: Path) -> None:
    """
    Run both parts, print what they show, and write the picture.

    Raises:
        CommandError: The contenders delivered different batches or losses.
    """
    console = Console(highlight=False)
    with one_thread():
        trainings = show_trainings(console, sizes)
        transfers = show_transfers(console, sizes)
    setting = f"workers {sizes.workers}, torch {torch.__version__}"
    draw(trainings, transfers, setting, picture)
    console.print(f"\nPicture: {picture}", soft_wrap=True, markup=False)


def show_trainings(console: Console, sizes: Sizes) -> list[Training]:
    """Train with both contenders, check that they agree, print the table."""
    batch_size = fit_shared_memory(
        console, sizes.batch_size, photographs.SAMPLE_BYTES, sizes.workers
    )
    sizes = replace(sizes, batch_size=batch_size)
    dataset = photographs.PhotographTiles(sizes.tiles_per_photograph)
    photograph_count = len(photographs.PHOTOGRAPHS)
    console.print(
        f"Training: {len(dataset)} JPEG tiles of {photograph_count} photographs; "
        f"batch size {batch_size}, workers {sizes.workers}, epochs {sizes.epochs}, "
        "persistent workers; shmloader with overlap_epochs=True"
    )
    trainings = train_in_turns(console, dataset, sizes)
    count = len(trainings[0].steps)
    console.print(f"Checked: all {count} batches are the same bit for bit, and so is every loss.\n")
    console.print(training_table(trainings))
    return trainings


def train_in_turns(
    console: Console, dataset: photographs.PhotographTiles, sizes: Sizes
) -> list[Training]:
    """
    Train an epoch with each contender, check it, and so on: a noisy minute hits both.

    Raises:
        CommandError: The contenders' batches or losses differ.
    """
    warm_up(sizes.batch_size)
    trainings = [
        Training(contender, dataset, sizes, **_OPTIONS.get(contender.name, {}))
        for contender in CONTENDERS
    ]
    steps = sum(len(training.loader) for training in trainings) * sizes.epochs
    with progress_bar(console, "training", steps) as advance:
        for epoch in range(1, sizes.epochs + 1):
            check_epoch(epoch, *(run_epoch(training, advance) for training in trainings))
            console.print(f"  epoch {epoch} of {sizes.epochs}: {describe_epoch(trainings)}")
    for training in trainings:
        training.stop()
    return trainings


def run_epoch(training: Training, advance: Callable[[], None]) -> list[Step]:
    """Train for one epoch, and let what is fetched for the next one not disturb the other's."""
    steps = training.run_epoch(advance)
    time.sleep(_SETTLE_S)
    return steps


def describe_epoch(trainings: list[Training]) -> str:
    """The latest epoch: its time with each contender, and the loss that they have in common."""
    times = [f"{training.name} {training.epoch_times_s[-1]:.2f} s" for training in trainings]
    steps = trainings[0].epochs[-1]
    return f"{', '.join(times)}, mean loss {sum(step.loss for step in steps) / len(steps):.4f}"


def check_epoch(epoch: int, expected: Sequence[Step], actual: Sequence[Step]) -> None:
    """
    Check that both contenders' steps saw the same batches and had the same losses.

    Raises:
        CommandError: They did not; the text names the first batch or step that differs.
    """
    check_same_batches(
        f"epoch {epoch}", [step.digest for step in expected], [step.digest for step in actual]
    )
    names = [contender.name for contender in CONTENDERS]
    for number, pair in enumerate(zip(expected, actual, strict=True), start=1):
        losses = [step.loss for step in pair]
        if losses[0] != losses[1]:
            raise CommandError(
                f"epoch {epoch}: the batches are the same, but the loss of step {number} is "
                f"{losses[0]!r} with {names[0]} and {losses[1]!r} with {names[1]}"
            )


def show_transfers(console: Console, sizes: Sizes) -> list[Transfer]:
    """Move large batches with both contenders, check that they agree, print the table."""
    load = Load(
        LARGE_SHAPE,
        sizes.pool_samples,
        sizes.large_batch_size,
        sizes.large_batches,
        sizes.rounds,
        sizes.workers,
    )
    batch_size = fit_shared_memory(console, load.batch_size, load.sample_bytes, load.workers)
    load = replace(load, batch_size=batch_size)
    console.print(
        f"\nLarge batches: {load.batches} of {batch_size} ready-made samples per pass, "
        f"{load.rounds} timed passes in turns"
    )
    passes = len(CONTENDERS) * (sizes.rounds + 1)
    with progress_bar(console, "large batches", passes) as advance:
        transfers = move_batches(load, advance)
    expected, actual = transfers
    check_same_batches("large batches", expected.digests, actual.digests)
    console.print(f"Checked: all {actual.batches} batches are the same bit for bit.\n")
    console.print(transfer_table(transfers))
    return transfers


def fit_shared_memory(console: Console, batch_size: int, sample_bytes: int, workers: int) -> int:
    """Lower a batch size if /dev/shm is too small for torch's batches, and say so."""
    fitting = fitting_batch_size(batch_size, sample_bytes, workers)
    if fitting < batch_size:
        console.print(
            f"/dev/shm is too small for torch's batches of {batch_size} samples: "
            f"both loaders use {fitting}"
        )
    return fitting
