"""A progress bar that starts no thread, so that workers may be forked and clocks read beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress_bar(console: Console, text: str, total: int) -> Iterator[Callable[[], None]]:
    """
    Show a bar while the block runs, and nothing if the console is no terminal.

    Args:
        console: Where to show it.
        text: The name of the work.
        total: How many advances make it full.

    Yields:
        A function that advances the bar by one and draws it.
    """
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        auto_refresh=False,
        speed_estimate_period=0,  # no column shows a speed, for which advances would be kept
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not console.is_terminal,
    )
    with progress:
        task = progress.add_task(text, total=total)

        def advance() -> None:
            progress.advance(task)
            progress.refresh()

        yield advance
