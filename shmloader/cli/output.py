"""Standard output of a command, which may be on a full disk, or have no reader any more."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

from shmloader.cli.command import CommandError


class OutputLost(CommandError):
    """Standard output takes no more. It is no `OSError`, which could be any other file's."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"its output cannot be written: {error.strerror}")


class ReaderLeft(OutputLost):
    """What reads the output has seen enough, as `head` has: no fault, and nothing to say."""

    status = 0


class _Output:
    """Standard output as it was, but for its errors: what takes one for another gets it again."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost: OutputLost | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._watched():
            return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        with self._watched():
            self._stream.writelines(lines)

    def flush(self) -> None:
        with self._watched():
            self._stream.flush()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        if self._lost is not None:
            raise self._lost
        try:
            yield
        except OSError as error:
            # Python would try to write the rest when it exits.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._lost = (ReaderLeft if isinstance(error, BrokenPipeError) else OutputLost)(error)
            raise self._lost from None


@contextlib.contextmanager
def watched_output() -> Iterator[None]:
    """Write all that the block prints, even if the block ends the program."""
    stream = sys.stdout
    if stream is None:  # the program was started with it closed, and prints nothing
        yield
        return
    sys.stdout = cast(TextIO, _Output(stream))
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    finally:
        sys.stdout = stream
