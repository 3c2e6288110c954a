"""Both contenders of a training, each in its process, in turns."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from bench.real.contender import BASELINE, END, SUBJECT, TRAIN, WATCH
from bench.real.training import Epoch
from bench.report import machine

CONTENDERS = (BASELINE, SUBJECT)

_LONGEST_S = 300  # a contender that says nothing for longer has failed
_END_S = 10

Ask = Callable[[str], Any]


class Failed(Exception):
    """A contender has ended, or hangs; the text says what it printed last."""


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
        for turn in range(rounds):
            for contender in CONTENDERS if turn % 2 == 0 else reversed(CONTENDERS):
                runs[contender].epochs.append(asks[contender](TRAIN))
        for contender, ask in asks.items():
            runs[contender].stats = ask(END)
        return runs


@contextmanager
def _started(name: str, contender: str, steps: int, folder: Path) -> Iterator[Ask]:
    """Start a contender's process. Yields a function that gives it an order."""
    here, there = multiprocessing.Pipe()
    command = [sys.executable, "-m", "bench.real.contender", str(there.fileno())]
    # A file, not a pipe: torch's helpers outlive the process with our end in their hands.
    with here, tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            [*command, name, contender, str(steps), str(folder)],
            cwd=machine.CHECKOUT, stdin=subprocess.DEVNULL, stdout=printed,
            stderr=subprocess.STDOUT, pass_fds=[there.fileno()], start_new_session=True,
        )  # fmt: skip
        there.close()

        def ask(order: str) -> Any:
            try:
                return _answer(here, order)
            except Failed as failure:
                raise Failed(f"{contender}: {failure}\n{_tail(printed)}") from None

        try:
            yield ask
            process.wait(_END_S)
        finally:
            _end(process)


def _answer(pipe: Connection, order: str) -> Any:
    try:
        pipe.send(order)
        if not pipe.poll(_LONGEST_S):
            raise Failed(f"no answer within {_LONGEST_S} s")
        found = pipe.recv()
    except (EOFError, OSError):
        raise Failed("its process has ended") from None
    if isinstance(found, dict) and "mistake" in found:
        raise Failed(found["mistake"])
    return found


def _tail(printed: IO[str]) -> str:
    printed.seek(0)
    return printed.read()[-600:].strip()


def _end(process: subprocess.Popen) -> None:
    """End what is left of a contender's session, and reap its first process."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
