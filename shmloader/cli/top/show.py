"""Where `shmloader top` shows what it saw: a terminal in place, lines, or JSON."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from shmloader.cli.attach.trainers import LiveTrainer
from shmloader.cli.command import require_extra
from shmloader.cli.top.as_json import as_record
from shmloader.cli.top.text import Line, lines_of, wrapped

_STYLES = {"": "", "bold": "bold", "alarm": "bold red"}

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
    """
    Refresh a terminal in place with each look.

    Raises:
        CommandError: rich is not installed.
    """
    require_extra("cli", {"rich": "rich"})
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    # Without its thread: a look is drawn when it was taken.
    console = Console()
    live = Live(console=console, auto_refresh=False, vertical_overflow="ellipsis")

    def show(trainers: list[LiveTrainer], nothing: str) -> None:
        drawn = Text()
        for line in _lines(trainers, nothing):
            for part in wrapped(line.text, console.width):
                drawn.append(f"{part}\n", style=_STYLES[line.style])
        drawn.append(time.strftime("%H:%M:%S, Ctrl-C ends this"), style="dim")
        live.update(drawn, refresh=True)

    with live:
        yield show


def _lines(trainers: list[LiveTrainer], nothing: str) -> list[Line]:
    return list(lines_of(trainers)) or [Line(nothing)]


def way_to_show(as_json: bool, once: bool) -> AbstractContextManager[Show]:
    """Choose where to show what is seen."""
    if as_json:
        return nullcontext(show_json)
    if once:
        return nullcontext(show_lines)
    return in_place() if sys.stdout.isatty() else nullcontext(show_with_time)
