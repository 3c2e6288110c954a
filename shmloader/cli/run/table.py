"""The table at the end of a run."""

from collections.abc import Iterator, Sequence

from shmloader.advice.report import report_on
from shmloader.cli.comparison import OURS, TORCHS, Took, compared, table
from shmloader.cli.run.epochs import Watched


def lines(
    seen: Sequence[Watched], seconds: float, process: str = "", compares: bool = False
) -> list[str]:
    """
    Say what the loaders of a process did; alike ones, as those made anew, are one.

    Args:
        process: Which one, if it is not the program's first.
        compares: torch was to iterate every second epoch of each loader.
    """
    rows: list[tuple[str, str, Took]] = []
    remarks: list[str] = []
    for title, group in _alike(seen):
        took = {by: sum((each.took[by] for each in group), Took()) for by in (OURS, TORCHS)}
        # One that never iterated is left out, unless neither did.
        iterated = [(title, by, each) for by, each in took.items() if each.epochs]
        rows += iterated or [(title, "-", took[OURS])]
        reasons = sorted({each.reason for each in group if each.reason})
        remarks += [f"{title}: stays torch's: {reason}" for reason in reasons]
        found = [*_comparison(took, bool(reasons), compares), *_verdicts(group)]
        remarks += [f"{title}: {text}" for text in found]
    loaders = "1 loader" if len(seen) == 1 else f"{len(seen)} loaders"
    return [
        f"shmloader run{process and ', ' + process}: {loaders}, {seconds:.1f} s since the first "
        "batch was asked for",
        *table("loader", rows),
        *remarks,
    ]


def _alike(seen: Sequence[Watched]) -> Iterator[tuple[str, list[Watched]]]:
    groups: dict[str, list[Watched]] = {}
    for watched in seen:
        groups.setdefault(watched.title, []).append(watched)
    for title, group in groups.items():
        yield (f"{title} ({len(group)} times)" if len(group) > 1 else title), group


def _verdicts(group: Sequence[Watched]) -> list[str]:
    """Say what limits the loop, and the first thing to change, where there were enough batches."""
    found = [report_on(*watched.evidence) for watched in group if watched.evidence is not None]
    return ["; ".join(report.lines[:2]) for report in found if report.cause is not None]


def _comparison(took: dict[str, Took], is_torchs: bool, compares: bool) -> list[str]:
    """Say what changed if both have iterated; why not, if both were to and torch never came to."""
    ours, torchs = took[OURS], took[TORCHS]
    if ours.batches and torchs.batches:
        return [compared(torchs, ours)]
    if not compares or is_torchs or torchs.epochs or not ours.epochs:
        return []
    return [
        "nothing to compare: torch takes every second epoch of a loader, and this one had no "
        "second; a program that makes its loader anew for each epoch can make it once, before them"
    ]
