"""Both contenders of a training, each in its process, in turns."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.driver import turns
from bench.real.contender import BASELINE, END, SUBJECT, TRAIN, WATCH, obey
from bench.real.training import Epoch

CONTENDERS = (BASELINE, SUBJECT)

_LONGEST_S = 300  # a contender that says nothing for longer has failed
_END_S = 10

Ask = Callable[[str], Any]


class Failed(Exception):
    """A contender has ended, or hangs; the text says what went wrong."""


@dataclass
class Run:
    """One contender: its first epoch, which is not timed, the timed ones, memory, its counters."""

    warm_up: Epoch
    peak_mb: float
    epochs: list[Epoch] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)

    def losses(self) -> list[float]:
        """List the loss of each step, the warm-up's first."""
        return [loss for epoch in (self.warm_up, *self.epochs) for loss in epoch.losses]


def alternate(name: str, steps: int, rounds: int, folder: Path) -> dict[str, Run]:
    """
    Let the contenders train in turns, an epoch each; both processes live to the end.

    Raises:
        Failed: One of them did not get there.
    """
    with ExitStack() as stack:
        asks = {
            contender: stack.enter_context(_started(name, contender, steps, folder))
            for contender in CONTENDERS
        }
        runs = {contender: Run(*ask(WATCH)) for contender, ask in asks.items()}
        for contender in turns(CONTENDERS, rounds):
            runs[contender].epochs.append(asks[contender](TRAIN))
        for contender, ask in asks.items():
            runs[contender].stats = ask(END)
        return runs


@contextmanager
def _started(name: str, contender: str, steps: int, folder: Path) -> Iterator[Ask]:
    """Start a contender's process. Yields a function that gives it an order."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=obey, args=(there, name, contender, steps, folder))
    process.start()
    there.close()

    def ask(order: str) -> Any:
        try:
            here.send(order)
            found = here.recv() if here.poll(_LONGEST_S) else None
        except (EOFError, OSError):
            raise Failed(f"{contender}: its process has ended") from None
        if found is None:
            raise Failed(f"{contender}: no answer within {_LONGEST_S} s")
        if isinstance(found, dict) and "mistake" in found:
            raise Failed(f"{contender}: {found['mistake']}")
        return found

    try:
        with here:
            yield ask
            process.join(_END_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
