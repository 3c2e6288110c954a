"""One look at trainings after another: in place of a terminal, as lines, or as JSON."""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial

from shmloader.cli.attach.process_facts import lives
from shmloader.cli.attach.trainers import LiveTrainer, find, find_all, none_found
from shmloader.cli.command import CommandError
from shmloader.cli.top.as_json import as_record
from shmloader.cli.top.text import Line, lines_of, wrapped

_STYLES = {"": "", "bold": "\x1b[1m", "alarm": "\x1b[1;31m", "dim": "\x1b[2m"}
_PLAIN, _HIDE_CURSOR, _SHOW_CURSOR = "\x1b[0m", "\x1b[?25l", "\x1b[?25h"

# Takes the trainings of one look, and what to say if there are none.
Show = Callable[[list[LiveTrainer], str], None]


def show_trainings(chosen: argparse.Namespace) -> int:
    """Show a training, or all, until it ends or Ctrl-C, and return the exit status."""
    has_seen = False
    with suppress(KeyboardInterrupt), _way_to_show(chosen) as show:  # Ctrl-C is the way to leave
        while True:
            trainers, nothing, is_over = _look(chosen.pid, has_seen)
            has_seen = has_seen or bool(trainers)
            show(trainers, nothing)
            if chosen.once or is_over:
                break
            time.sleep(chosen.interval)
    return 0 if has_seen else 1


def _look(pid: int | None, has_seen: bool) -> tuple[list[LiveTrainer], str, bool]:
    """Returns trainings, what to say if there are none, and True if there is no more to see."""
    if pid is None:
        trainers, forbidden = find_all()
        return trainers, none_found(forbidden), False
    try:
        return [find(pid)], "", False
    except CommandError as error:
        if not has_seen:
            raise
        return [], str(error) if lives(pid) else f"process {pid} has ended", True


def _way_to_show(chosen: argparse.Namespace) -> AbstractContextManager[Show]:
    if chosen.json:
        return nullcontext(lambda trainers, _: print(json.dumps(as_record(trainers)), flush=True))
    can_go_up = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if can_go_up and not chosen.once:
        return _in_place()
    return nullcontext(partial(_show_lines, "" if chosen.once else "--- %H:%M:%S\n"))


def _show_lines(heading: str, trainers: list[LiveTrainer], nothing: str) -> None:
    print(time.strftime(heading), end="")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for line in _lines(trainers, nothing):
        print(*wrapped(line.text, width), sep="\n")
    sys.stdout.flush()


@contextmanager
def _in_place() -> Iterator[Show]:
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
