"""
torch's loader beside ours: what each took, and the table of it.

`shmloader run --compare` and the demo in examples/ compare by this module alone.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

OURS, TORCHS = "shmloader", "torch"

_HEADINGS = ("by", "epochs", "batches", "waited, s", "ms a batch", "CPU ms a batch")


@dataclass
class Took:
    """What epochs took."""

    epochs: int = 0  # that began
    batches: int = 0
    waited_s: float = 0.0  # in iter() and next()
    cpu_s: float = 0.0  # processor time of the whole process, with what it did with batches

    @property
    def batch_s(self) -> float:
        """Seconds that a batch is waited for."""
        return self.waited_s / max(self.batches, 1)

    @property
    def batch_cpu_s(self) -> float:
        """Seconds of processor time for a batch."""
        return self.cpu_s / max(self.batches, 1)

    def of(self, batches: int) -> Took:
        """Say what so many of its batches took."""
        return Took(self.epochs, batches, self.batch_s * batches, self.batch_cpu_s * batches)

    def __add__(self, other: Took) -> Took:
        """Count both together."""
        return Took(*map(operator.add, vars(self).values(), vars(other).values()))


def table(loads: str, rows: Sequence[tuple[str, str, Took]]) -> list[str]:
    """Say what loaders took, in columns."""
    lines = [(loads, *_HEADINGS), *((title, by, *_figures(took)) for title, by, took in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    form = "  ".join(f"{{:{'<' if at < 2 else '>'}{width}}}" for at, width in enumerate(widths))
    return [form.format(*line).rstrip() for line in lines]


def _figures(took: Took) -> list[str]:
    waits = f"{took.waited_s:.2f}", f"{took.batch_s * 1e3:.3f}", f"{took.batch_cpu_s * 1e3:.3f}"
    return [str(took.epochs), str(took.batches), *waits]


def compared(torchs: Took, ours: Took) -> str:
    """Say how much less or more a batch takes with ours than with torch's loader."""
    waits = _change(ours.batch_s / max(torchs.batch_s, 1e-9))
    cpu = _change(ours.batch_cpu_s / max(torchs.batch_cpu_s, 1e-9))
    return f"waits {waits} per batch than torch's loader, and uses {cpu} CPU"


def _change(part: float) -> str:
    """Say what part of a time another one is: "18 % less"."""
    change = 100 * abs(1 - part)
    # Not "100 % less" of a wait that is there.
    number = f"{change:.0f}" if change < 99.5 or part > 1 else f"{change:.1f}"
    return f"{number} % {'more' if part > 1 else 'less'}"
