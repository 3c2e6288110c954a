"""Lives through a case: with torch's loader or ours, with or without what must change nothing."""

from __future__ import annotations

import ast
import contextlib
import gc
import inspect
import os
import pickle
import random
import re
import signal
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

import shmloader
from tests.lives import accelerator
from tests.lives.accelerator import Accelerator
from tests.lives.case import SHAPING, Case, Event
from tests.lives.material import open_loader, plain, set_epoch


@dataclass
class Trace:
    """
    What a life has had.

    Attributes:
        epochs: The batches of each epoch.
        left: Of each epoch, True if it was left before its end.
        others: Batches of second iterators and second loaders.
    """

    epochs: list[list[Any]] = field(default_factory=list)
    left: list[bool] = field(default_factory=list)
    others: list[list[Any]] = field(default_factory=list)


class Wrong(AssertionError):
    """Something that must hold in every life does not."""


class Life:
    """
    One loader from its birth to its end.

    Args:
        case: The case.
        is_ours: Live with this project's loader.
        is_disturbed: Live through what must change nothing too.
    """

    def __init__(self, case: Case, is_ours: bool, is_disturbed: bool) -> None:
        self.case, self.is_ours, self.is_disturbed = case, is_ours, is_disturbed
        self.trace = Trace()
        self.loader: Any = None
        self.iterator: Any = None
        self.generation = 0
        self.has_place = True  # the loader's state is that of the epoch in hand
        self.has_left = False  # an epoch, within it; or its dataset has, by an error
        # Between two epochs: until the next begins, so that nothing is drawn between the two.
        self.resuming: Event | None = None
        self.keep = 0
        self.kept: list[tuple[Any, Any]] = []
        self.open: list[Any] = []
        self.children: list[tuple[int, int]] = []
        self.accelerator: Accelerator | None = None

    def run(self) -> Trace:
        """Live to the end."""
        if self.is_ours and self.is_disturbed:
            self.accelerator = accelerator.of(self.case)
        seed_all(self.case.seed)
        self.loader = open_loader(self.case, self.is_ours)
        for epoch in range(self.case.epochs):
            self._epoch(epoch)
            if self.is_ours and self.is_disturbed:
                self._follow_advice()
            self._check_kept()
        self._end()
        return self.trace

    def _epoch(self, epoch: int) -> None:
        for event in self._events(epoch, lambda batch: batch == -1):
            self._happen(event)
        if self.resuming is not None:
            self._go_on_elsewhere(self.resuming)
        batches: list[Any] = []
        self.trace.epochs.append(batches)
        self.trace.left.append(False)
        self._begin(epoch)
        while True:
            for event in self._events(epoch, lambda batch: batch == len(batches)):
                if self._happen(event):
                    self.trace.left[-1] = True
                    return
            try:
                batch = next(self.iterator)
            except StopIteration:
                break
            except LookupError as error:
                batches.append(("error", str(error).strip().splitlines()[-1]))
                self.has_left = True  # an iterable dataset does not go on after its error
                continue
            batches.append(plain(batch, self.case))
            if self.accelerator is not None:
                self.accelerator.copy(batch, batches[-1])
            if self.keep:
                self.keep -= 1
                self.kept.append((batch, batches[-1]))
            if len(batches) > 3 * self.case.data.samples + 60:
                raise Wrong(f"epoch {epoch} does not end: {len(batches)} batches")
        for event in self._events(epoch, lambda batch: batch > len(batches)):
            self._happen(event)
        self.iterator = None

    def _begin(self, epoch: int) -> None:
        self.iterator = None
        set_epoch(self.loader, epoch)
        self.iterator = iter(self.loader)
        self.has_place = True

    def _events(self, epoch: int, chosen: Any) -> list[Event]:
        return [event for event in self.case.events if event.epoch == epoch and chosen(event.batch)]

    def _happen(self, event: Event) -> bool:
        """Returns True if the epoch is left."""
        if event.what not in SHAPING and not self.is_disturbed:
            return False
        return bool(getattr(self, f"_{event.what}")(event))

    def _break(self, event: Event) -> bool:
        self.iterator = None
        self._lose_place()
        self.has_left = True
        return event.batch >= 0

    def _lose_place(self) -> None:
        """From here to the next epoch, the loader's state is of another place."""
        self.has_place, self.resuming = False, None

    def _close(self, event: Event) -> bool:
        if self.is_ours:
            self.loader.close()
        else:
            self.loader._iterator = None
        return self._break(event)

    def _draw(self, event: Event) -> None:
        self._draw_before_the_sampler()
        torch.rand(event.number + 1)
        random.random()

    def _again(self, event: Event) -> None:
        """Take a few batches of a second iterator of the same loader."""
        if self.iterator is None or self.case.is_persistent:
            return
        self._take(iter(self.loader), event)
        self._lose_place()

    def _other(self, event: Event) -> None:
        """Take a few batches of a second loader."""
        self._draw_before_the_sampler()
        self._take(iter(open_loader(self.case, self.is_ours, generation=500)), event)

    def _draw_before_the_sampler(self) -> None:
        if self._is_before_the_sampler():
            self._lose_place()

    def _is_before_the_sampler(self) -> bool:
        """Without workers it draws for its first batch: what draws before that, no state has."""
        has_begun = self.iterator is not None and not self.trace.epochs[-1]
        return has_begun and self.case.workers == 0

    def _draws_after(self, event: Event) -> bool:
        """Returns True if something draws after an event, before the next batch."""
        later = self.case.events[self.case.events.index(event) + 1 :]
        return any(
            each.what in ("draw", "again", "other") and (each.epoch, each.batch) == (event.epoch, 0)
            for each in later
        )

    def _take(self, iterator: Any, event: Event) -> None:
        batches: list[Any] = []
        self.trace.others.append(batches)
        for _ in range(event.number):
            with contextlib.suppress(LookupError, StopIteration):
                batches.append(plain(next(iterator), self.case))
        if event.number % 2:
            self.open.append(iterator)

    def _kill(self, event: Event, number: int = signal.SIGKILL) -> None:
        iterator = self.loader._iterator if self.iterator is None else self.iterator
        pids = [each.pid for each in getattr(iterator, "_workers", []) if each.pid]
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[event.number % len(pids)], number)

    def _stop(self, event: Event) -> None:
        self._kill(event, signal.SIGSTOP)

    def _resume(self, event: Event) -> None:
        """Go on in a new loader."""
        if not self.has_place or (self.has_left and self._goes_on_where_it_left()):
            return
        if self.has_left and self._may_be_empty():
            return
        is_within = self.iterator is not None and event.batch <= len(self.trace.epochs[-1])
        if is_within and self._is_before_the_sampler() and self._draws_after(event):
            return
        if is_within:
            self._go_on_elsewhere(event)
            self._begin(event.epoch)
        else:
            self.resuming = event

    def _goes_on_where_it_left(self) -> bool:
        """Returns True if an epoch begins where the last one was left, which no plain state has."""
        is_known = "resumable" in self.case.ours
        return self.case.data.kind == "counting" and self.case.is_persistent and not is_known

    def _may_be_empty(self) -> bool:
        """Returns True if what was left may have been the rest of this epoch, too (resume.md)."""
        return self._is_before_the_sampler() and self.case.sampler.startswith("stateful")

    def _go_on_elsewhere(self, event: Event) -> None:
        self.resuming = None
        state = pickle.loads(pickle.dumps(self.loader.state_dict()))
        self.iterator = None
        if event.number % 2:
            self.loader.close()
        self.generation += 1
        self.loader = open_loader(self.case, True, self.generation)
        self.loader.load_state_dict(state)

    def _keep(self, event: Event) -> None:
        self.keep = event.number + 1

    def _fork(self, event: Event) -> None:
        """Fork the trainer: the child looks at the batches it inherits when told to."""
        read, write = os.pipe()
        pid = os.fork()
        if pid:
            os.close(read)
            self.children.append((pid, write))
            return
        status = 1
        try:
            os.close(write)
            os.read(read, 1)
            self._check_kept()
            # Multiprocessing has one forkserver, which a child of its parent cannot use.
            has_workers = self.case.torch.get("multiprocessing_context") != "forkserver"
            if event.number % 2 and has_workers and self.case.data.raises is None:
                for _ in zip(range(2), self.loader, strict=False):
                    pass
                self.loader.close()
            status = 0
        finally:
            os._exit(status)

    def _check_kept(self) -> None:
        for batch, rows in self.kept:
            if plain(batch, self.case) != rows:
                raise Wrong(
                    f"a batch that was kept has changed: {rows} to {plain(batch, self.case)}"
                )

    def _follow_advice(self) -> None:
        """Open a loader with what the report advises, which must not be refused."""
        report = self.loader.report()
        said = [advice_in(line) for line in report.lines]
        for advice in (report.advice, *said):
            try:
                open_loader(self.case, True, **advice)
            except (ValueError, TypeError) as error:
                raise Wrong(f"report() advises {advice}, which is refused: {error}") from None

    def _end(self) -> None:
        for pid, write in self.children:
            os.write(write, b"x")
            os.close(write)
            if os.waitpid(pid, 0)[1]:
                raise Wrong("a child that was forked has other batches, or could not iterate")
        self._check_kept()
        self.iterator = None
        self.open.clear()
        if self.is_ours:
            self.loader.close()
        elif self.loader._iterator is not None:
            self.loader._iterator._shutdown_workers()  # an error in a cycle may hold it
        self.loader = None
        gc.collect()
        self._check_kept()
        self.kept.clear()
        wrong = self.accelerator.check() if self.accelerator is not None else None
        if wrong:
            raise Wrong(wrong)


_SETTING = re.compile(r"\b(\w+)=(\"[^\"]*\"|'[^']*'|\w+)")


def advice_in(line: str) -> dict[str, Any]:
    """Returns the options that a line of a report names with a value."""
    names = inspect.signature(shmloader.DataLoader).parameters
    found = {}
    for name, value in _SETTING.findall(line):
        if name in names:
            with contextlib.suppress(ValueError):
                found[name] = ast.literal_eval(value)
    return found


def seed_all(seed: int) -> None:
    """Seed the three global generators."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
