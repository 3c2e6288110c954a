"""Steps between the lines of Python, and exceptions that arrive between its bytecodes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tests.simulation.door import Door

_CLIENT = str(Path(__file__).with_name("counted.py"))
_COMPONENTS = ("transport", "processes", "worker", "pool", "publishing")
_OF_THE_MACHINE = "foreign_threads.py"  # it reads what is mapped, which no seed decides

# From Python 3.12 on bytecodes are traced only if a frame asked for it before the trace began.
sys._getframe().f_trace_opcodes = True


def files(package: Path) -> list[str]:
    """List the files of which lines are steps, as they stand in the package."""
    found = (path for room in _COMPONENTS for path in (package / room).glob("*.py"))
    names = (path.relative_to(package) for path in found if path.name != _OF_THE_MACHINE)
    return sorted(f"shmloader/{name}" for name in names)


class Lines:
    """
    Makes each line a step, in this process and all that it forks.

    Attributes:
        came: How many interrupts have arrived.
    """

    def __init__(self, door: Door, package: Path, interrupts: tuple[int, ...]) -> None:
        """
        Trace nothing yet.

        Args:
            interrupts: Before which bytecodes of those that may be interrupted one is, in rising
                order.
        """
        self._door = door
        self._numbers = {
            str(package.parent / file): (place + 1) << 16
            for place, file in enumerate(files(package))
        }
        # Of these no line is a step; the second is used by a mistake that is planted.
        self._no_steps = {_CLIENT, str(package / "core" / "plain.py")}
        self._interrupts = list(interrupts)
        self._passed = 0
        self._may_interrupt = False
        self.came = 0
        self._pid = 0

    def begin(self) -> None:
        """Trace from now on."""
        self._pid = os.getpid()
        sys.settrace(self._call)

    def end(self) -> None:
        """Trace no more."""
        self._pid = 0
        sys.settrace(None)

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Have interrupts arrive meanwhile, in the trainer alone."""
        if self._pid:
            sys.settrace(self._call)  # again: Python traces no more once a trace has raised
        self._may_interrupt = True
        try:
            yield
        finally:
            self._may_interrupt = False

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in self._numbers and name not in self._no_steps:
            return None
        frame.f_trace_opcodes = bool(self._interrupts)
        return self._line

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._door.is_open:
            return self._line
        if event == "line":
            number = self._numbers.get(frame.f_code.co_filename)
            if number is not None:
                self._door.line(number + frame.f_lineno)
        elif event == "opcode":
            self._interrupt()
        return self._line

    def _interrupt(self) -> None:
        """Raise an interrupt if it is time."""
        if not (self._may_interrupt and self._interrupts and os.getpid() == self._pid):
            return
        self._passed += 1
        # What is raised by a trace at a return in an except clause leaves that clause's error
        # behind as the one that is handled, with all that its traceback refers to.
        if self._passed >= self._interrupts[0] and sys.exc_info()[0] is None:
            del self._interrupts[0]
            self.came += 1
            raise KeyboardInterrupt
