"""Exceptions that arrive between two lines, or two bytecodes, as those of signals' handlers do."""

import contextlib
import sys
from pathlib import Path

import shmloader

PACKAGE = str(Path(shmloader.__file__).parent)

# From Python 3.12 on bytecodes are traced only if a frame asked for it before the trace began.
sys._getframe().f_trace_opcodes = True


class Interrupt(KeyboardInterrupt):
    """The exception that a signal handler raises."""


class Interrupter:
    """
    Raises at the n-th event of the package, once; then n grows. A subclass may do something else.

    Attributes:
        target: n, which may be set.
        step: By how much it grows.
    """

    def __init__(self, function=None, event="line", folders=(PACKAGE,), step=1):
        """Count the lines or opcodes of some folders, which run within one function or anywhere."""
        self.code = None if function is None else function.__code__
        self.event, self.folders, self.step = event, folders, step
        self.depth = self.passed = 0
        self.target = 1

    def __enter__(self):
        self.depth, self.passed = int(self.code is None), 0
        sys.settrace(self.called)

    def __exit__(self, kind, *_):
        sys.settrace(None)
        self.target += self.step * (kind is not None and issubclass(kind, Interrupt))
        return False

    def called(self, frame, event, argument):
        if frame.f_code is self.code:
            self.depth += 1
            self.passed = 0
        elif not self.depth or not frame.f_code.co_filename.startswith(self.folders):
            return None
        frame.f_trace_opcodes = self.event == "opcode"
        frame.f_trace_lines = not frame.f_trace_opcodes
        return self.moved

    def moved(self, frame, event, argument):
        if event == self.event:
            self.passed += 1
            if self.passed == self.target:
                self.act(frame)
        elif event == "return" and frame.f_code is self.code:
            self.depth -= 1
        return self.moved

    def act(self, frame):
        print(f"interrupted {frame.f_code.co_qualname}, line {frame.f_lineno}")
        raise Interrupt()


def insist(interrupter, action):
    """Repeat what is interrupted, each time one event later."""
    while True:
        with contextlib.suppress(Interrupt), interrupter:
            return action()


def interrupted_once(function, comes_after):
    """Wrap a function of which one call is interrupted: the first, or after the first result."""
    is_over = False

    def call(*arguments):
        nonlocal is_over
        result = function(*arguments) if is_over or comes_after else None
        if not is_over and (result is not None or not comes_after):
            is_over = True
            raise Interrupt
        return result

    return call
