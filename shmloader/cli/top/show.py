"""Where `shmloader top` shows what it saw: a terminal in place, lines, or JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from shmloader.cli.attach.trainers import LiveTrainer
from shmloader.cli.top.as_json import as_record
from shmloader.cli.top.text import Line, lines_of, wrapped

_STYLES = {"": "", "bold": "\x1b[1m", "alarm": "\x1b[1;31m", "dim": "\x1b[2m"}
_PLAIN, _HIDE_CURSOR, _SHOW_CURSOR = "\x1b[0m", "\x1b[?25l", "\x1b[?25h"

# Takes the trainings of one look, and what to say if there are none.
Show = Callable[[list[LiveTrainer], str], None]


def show_json(trainers: list[LiveTrainer], _: str) -> None:
    """Print an object on a line of its own."""
    print(json.dumps(as_record(trainers)), flush=True)


def show_lines(trainers: list[LiveTrainer], nothing: str) -> None:
    """Print lines below those of the look before."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns
    for line in _lines(trainers, nothing):
        for part in wrapped(line.text, width) if is_terminal else [line.text]:
            print(part)
    sys.stdout.flush()


def show_with_time(trainers: list[LiveTrainer], nothing: str) -> None:
    """Print lines under a heading that tells one look from the next."""
    print(time.strftime("--- %H:%M:%S"))
    show_lines(trainers, nothing)


@contextmanager
def in_place() -> Iterator[Show]:
    """Refresh a terminal in place with each look."""
    drawn: list[str] = []

    def show(trainers: list[LiveTrainer], nothing: str) -> None:
        # Up over the look before, of which nothing must be left.
        above = f"\x1b[{len(drawn)}F" if drawn else ""
        drawn[:] = _screen(_lines(trainers, nothing))
        print(f"{above}\x1b[J", *(f"{line}\n" for line in drawn), sep="", end="", flush=True)

    print(_HIDE_CURSOR, end="")
    try:
        yield show
    finally:
        print(_SHOW_CURSOR, end="", flush=True)


def _screen(lines: list[Line]) -> list[str]:
    """Lay lines out for the terminal; what it has no room for is left out."""
    columns, rows = shutil.get_terminal_size()
    parts = [(part, line.style) for line in lines for part in wrapped(line.text, columns)]
    if len(parts) > rows - 2:  # one for the last line, and one for the cursor below it
        parts[max(rows - 3, 0) :] = [("...", "")]
    parts.append((time.strftime("%H:%M:%S, Ctrl-C ends this"), "dim"))
    styles = {} if "NO_COLOR" in os.environ else _STYLES
    return [
        f"{start}{part}{_PLAIN}" if (start := styles.get(style)) else part for part, style in parts
    ]


def _lines(trainers: list[LiveTrainer], nothing: str) -> list[Line]:
    return list(lines_of(trainers)) or [Line(nothing)]


def way_to_show(as_json: bool, once: bool) -> AbstractContextManager[Show]:
    """Choose where to show what is seen."""
    if as_json:
        return nullcontext(show_json)
    if once:
        return nullcontext(show_lines)
    can_go_up = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return in_place() if can_go_up else nullcontext(show_with_time)
