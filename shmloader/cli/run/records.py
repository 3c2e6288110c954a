"""What is known of the loaders of a program, and of their epochs."""

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from shmloader.errors import at_users_line
from shmloader.metrics.case import Setting
from shmloader.trainer.service import Evidence, Service

# A reference to an iterator, what serves it, and what it is run with.
Served = tuple[weakref.ref[Any], Service, Setting]

OURS, TORCHS = "shmloader", "torch"


@dataclass
class Passes:
    """What the epochs of one loader took with one transport; seconds, in the iterating thread."""

    epochs: int = 0
    batches: int = 0
    waited_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, other: Self) -> None:
        """Add what others took."""
        self.epochs += other.epochs
        self.batches += other.batches
        self.waited_s += other.waited_s
        self.cpu_s += other.cpu_s

    def time(self, step: Callable[[], Any]) -> Any:
        """Add what a step takes."""
        begin, cpu = time.perf_counter(), time.thread_time()
        try:
            return step()
        finally:
            self.waited_s += time.perf_counter() - begin
            self.cpu_s += time.thread_time() - cpu


@dataclass
class Watched:
    """
    One loader of the program.

    Attributes:
        title: What it loads, in words.
        reason: Why it stays torch's; "" if it does not.
        passes: By who iterated; epochs belong to whose turn it was when they began.
        turn: Who iterates this epoch.
        is_chosen: `turn` is that of an epoch whose iterator is not made yet.
        is_ours_to_make: Its class has asked for an iterator; one that never does makes its own.
        kept: Persistent iterators that take turns, by whose they are.
        served: What serves its living iterators of ours, and what they are run with, by id.
        evidence: What it is judged by at the end, as far as it is known already.
    """

    title: str
    reason: str = ""
    passes: dict[str, Passes] = field(default_factory=lambda: {OURS: Passes(), TORCHS: Passes()})
    turn: str = OURS
    is_chosen: bool = False
    is_ours_to_make: bool = False
    kept: dict[str, Any] = field(default_factory=dict)
    served: dict[int, Served] = field(default_factory=dict)
    evidence: Evidence | None = None

    def take_evidence(self, of: Sequence[int]) -> None:
        """Take what the loader is judged by from iterators that have ended; keep nothing else."""
        for key in of:
            _, service, setting = self.served.pop(key, (None, None, None))
            if service is not None and setting is not None:  # not taken yet
                self.evidence = service.evidence(setting) or self.evidence

    def timed(self, kind: Any, before: torch.Tensor | None = None) -> Any:
        """
        Make a subclass of an iterator's class that counts for whose turn it is.

        Args:
            before: A state for the loader's generator, from which the first epoch draws.
        """
        passes = self.passes[self.turn]

        def __next__(self: Any) -> Any:
            step = super(timed, self).__next__  # type: ignore[misc]
            length = self._IterableDataset_len_called
            if length is not None and self._num_yielded >= length:
                batch = passes.time(lambda: at_users_line(step))  # torch will warn
            else:
                batch = passes.time(step)
            passes.batches += 1
            return batch

        def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
            if first_iter and before is not None:
                generator_of(loader).set_state(before)
            super(timed, self)._reset(loader, first_iter)  # type: ignore[misc]

        body = {"__next__": __next__, "_reset": _reset, "__module__": kind.__module__}
        timed: Any = type(kind.__name__, (kind,), body)
        return timed


def generator_of(loader: Any) -> torch.Generator:
    """Return what a loader's sampler draws from, unless that has a generator of its own."""
    return loader.generator or torch.default_generator
