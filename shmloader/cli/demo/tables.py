"""The demo's measurements as tables: a row for each quantity, a column for each contender."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from rich.table import Table

from shmloader.cli.comparison.moving import Transfer
from shmloader.cli.demo.training import Step, Training

MILLI = 1e3
GIGA = 1e9


def training_table(trainings: Sequence[Training]) -> Table:
    """Show the cost of the trainings: the median epoch, and the median step."""
    table = empty_table("Training on photographs", [training.name for training in trainings])
    table.add_row("seconds per epoch", *(f"{each.epoch_s:.2f}" for each in trainings))
    table.add_row("  fastest and slowest", *(span(each.epoch_times_s) for each in trainings))
    table.add_row("time waiting for data", *(f"{each.waiting_share:.1%}" for each in trainings))
    table.add_row(
        "ms waiting at the first step of later epochs",
        *(f"{each.edge_s * MILLI:.1f}" for each in trainings),
    )
    table.add_row(
        "trainer CPU to receive a batch, ms",
        *(f"{per_step(each, lambda step: step.cpu_s) * MILLI:.2f}" for each in trainings),
    )
    table.add_row(
        "page faults to receive and read a batch",
        *(f"{per_step(each, lambda step: step.faults):.0f}" for each in trainings),
    )
    table.add_row("loss after the last step", *(f"{each.steps[-1].loss:.9f}" for each in trainings))
    table.add_row(
        "correct in the last epoch", *(f"{correct_share(each):.1%}" for each in trainings)
    )
    return table


def transfer_table(transfers: Sequence[Transfer]) -> Table:
    """Show the cost of moving large batches; times are medians of the rounds."""
    batch_megabytes = transfers[0].batch_bytes / 1e6
    title = f"Moving batches of {batch_megabytes:.1f} MB"
    table = empty_table(title, [transfer.name for transfer in transfers])
    table.add_row("ms per batch", *(f"{each.batch_s * MILLI:.2f}" for each in transfers))
    table.add_row("  fastest and slowest", *(batch_span_ms(each) for each in transfers))
    table.add_row("GB/s", *(f"{speed(each) / GIGA:.1f}" for each in transfers))
    table.add_row(
        "trainer CPU per batch, ms", *(f"{each.batch_cpu_s * MILLI:.2f}" for each in transfers)
    )
    table.add_row(
        "page faults to receive and read a batch",
        *(f"{each.faults / each.batches:.0f}" for each in transfers),
    )
    return table


def empty_table(title: str, names: Sequence[str]) -> Table:
    """A table with its columns and no rows."""
    table = Table(title=title, title_justify="left", min_width=64)
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    return table


def per_step(training: Training, figure: Callable[[Step], float]) -> float:
    """Median of one figure over the steps."""
    return median(figure(step) for step in training.steps)


def correct_share(training: Training) -> float:
    """Share of correct answers in the last epoch."""
    return sum(step.correct for step in training.epochs[-1]) / len(training.epochs[-1])


def span(values: Sequence[float]) -> str:
    """Smallest and largest value."""
    return f"{min(values):.2f} to {max(values):.2f}"


def batch_span_ms(transfer: Transfer) -> str:
    """Fastest and slowest round, in ms per batch."""
    return span([spent_s * MILLI for spent_s in transfer.batch_times_s])


def speed(transfer: Transfer) -> float:
    """Bytes per second."""
    return transfer.batch_bytes / transfer.batch_s
