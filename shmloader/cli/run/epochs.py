"""What is known of the loaders of a program, and of their epochs."""

import operator
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shmloader.advice.report import why_too_short
from shmloader.stats.setting import Setting
from shmloader.trainer.service import Evidence, Service

OURS, TORCHS = "shmloader", "torch"  # who iterated

# A reference to an iterator, what serves it, and what it is run with.
Served = tuple[weakref.ref[Any], Service, Setting]


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

    def of(self, batches: int) -> "Took":
        """Say what so many of its batches took."""
        return Took(self.epochs, batches, self.batch_s * batches, self.batch_cpu_s * batches)

    def __add__(self, other: "Took") -> "Took":
        """Count both together."""
        return Took(*map(operator.add, vars(self).values(), vars(other).values()))


@dataclass
class Clock:
    """Adds up what an iterator of torch's takes, from outside of it."""

    took: Took = field(default_factory=Took)
    cpu_s: float = field(default_factory=time.process_time)  # at the last look

    def time(self, step: Callable[[], Any]) -> Any:
        """Add what a step takes, and the processor time since the last one."""
        begin_s = time.perf_counter()
        try:
            return step()
        finally:
            cpu_s = time.process_time()
            self.took.waited_s += time.perf_counter() - begin_s
            self.took.cpu_s += cpu_s - self.cpu_s
            self.cpu_s = cpu_s


@dataclass
class Watched:
    """One loader of the program."""

    title: str  # what it loads, in words
    length: int | None = None  # batches of an epoch; None if only user code could tell
    reason: str = ""  # why it stays torch's, if it does
    # By who iterated; epochs belong to whose turn it was when they began.
    took: dict[str, Took] = field(default_factory=lambda: {OURS: Took(), TORCHS: Took()})
    turn: str = OURS  # who iterates this epoch
    is_chosen: bool = False  # `turn` is that of an epoch whose iterator is not made yet
    is_ours_to_make: bool = False  # its class asked for an iterator; another one makes its own
    kept: dict[str, Any] = field(default_factory=dict)  # persistent iterators, by whose they are
    before: torch.Tensor | None = None  # what the generator is set back to before an epoch draws
    served: dict[int, Served] = field(default_factory=dict)  # its living iterators of ours, by id
    counted: set[int] = field(default_factory=set)  # epochs of ours in `took`, by their numbers

    @property
    def kind(self) -> tuple[str, int | None]:
        """What it has in common with others like it, such as those made anew for each epoch."""
        return self.title, self.length

    def count(self, service: Service, *, is_over: bool) -> None:
        """Add what its epochs of ours took; with is_over, those that run are not counted yet."""
        ours = self.took[OURS]
        for epoch in service.pool.history.epochs():
            if epoch.number not in self.counted and (epoch.is_over or not is_over):
                self.counted.add(epoch.number)
                ours.batches += epoch.batches
                ours.waited_s += epoch.next.total_s
                ours.cpu_s += epoch.trainer_cpu_s

    def take_evidence(self, of: Sequence[int]) -> Evidence | None:
        """Take what the loader is judged by from iterators that have ended; keep nothing else."""
        found = None
        for key in of:
            _, service, setting = self.served.pop(key, (None, None, None))
            if service is not None and setting is not None:  # not taken yet
                self.count(service, is_over=bool(self.served))
                judged = (each for each in service.epochs(setting) if not why_too_short(*each))
                found = next(judged, found)
        return found
