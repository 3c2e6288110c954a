"""The table at the end of a run."""

from collections.abc import Iterator, Sequence

from shmloader.cli.run.records import Passes, Watched
from shmloader.metrics.report import report_on

_HEADINGS = ("loader", "by", "epochs", "batches", "waited, s", "ms a batch", "CPU ms a batch")


def lines(
    seen: Sequence[Watched], seconds: float, process: str = "", compares: bool = False
) -> list[str]:
    """
    Say what the loaders of a process did; alike ones, as those made anew, are one.

    Args:
        process: Which one, if it is not the program's first.
        compares: torch was to iterate every second epoch of each loader.
    """
    rows: list[tuple[str, ...]] = [_HEADINGS]
    remarks: list[str] = []
    for title, watched in _alike(seen):
        for whose, passes in _sums(watched):
            rows.append((title, whose, *_figures(passes)))
        remarks += [f"{title}: stays torch's: {reason}" for reason in _reasons(watched)]
        found = _comparison(watched) or (_why_none(watched) if compares else [])
        remarks += [f"{title}: {text}" for text in (*found, *_verdicts(watched))]
    loaders = "1 loader" if len(seen) == 1 else f"{len(seen)} loaders"
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEADINGS))]
    return [
        f"shmloader run{process and ', ' + process}: {loaders}, {seconds:.1f} s since the first "
        "batch was asked for",
        *(_aligned(row, widths) for row in rows),
        *remarks,
    ]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    words = [row[place].ljust(widths[place]) for place in (0, 1)]
    numbers = [row[place].rjust(widths[place]) for place in range(2, len(row))]
    return "  ".join([*words, *numbers]).rstrip()


def _alike(seen: Sequence[Watched]) -> Iterator[tuple[str, list[Watched]]]:
    groups: dict[str, list[Watched]] = {}
    for watched in seen:
        groups.setdefault(watched.title, []).append(watched)
    for title, group in groups.items():
        yield (f"{title} ({len(group)} times)" if len(group) > 1 else title), group


def _sums(group: Sequence[Watched]) -> list[tuple[str, Passes]]:
    """Add up, by who iterated. One that never did is left out, unless neither did."""
    found = []
    for whose in group[0].passes:
        parts = [watched.passes[whose] for watched in group]
        total = Passes()
        for part in parts:
            total.add(part)
        found.append((whose, total))
    return [(whose, passes) for whose, passes in found if passes.epochs] or [("-", found[0][1])]


def _figures(passes: Passes) -> list[str]:
    each = 1e3 / max(passes.batches, 1)
    return [
        str(passes.epochs),
        str(passes.batches),
        f"{passes.waited_s:.2f}",
        f"{passes.waited_s * each:.3f}",
        f"{passes.cpu_s * each:.3f}",
    ]


def _reasons(group: Sequence[Watched]) -> list[str]:
    return sorted({watched.reason for watched in group if watched.reason})


def _verdicts(group: Sequence[Watched]) -> list[str]:
    """Say what limits the loop, and the first thing to change, where there were enough batches."""
    found = [report_on(*watched.evidence) for watched in group if watched.evidence is not None]
    return ["; ".join(report.lines[:2]) for report in found if report.cause is not None]


def _comparison(group: Sequence[Watched]) -> list[str]:
    """Say what changed, if both have iterated."""
    sums = dict(_sums(group))
    if len(sums) < 2 or not all(passes.batches for passes in sums.values()):
        return []
    ours, torchs = (sums[whose] for whose in group[0].passes)
    waited = (ours.waited_s / ours.batches) / max(torchs.waited_s / torchs.batches, 1e-9)
    cpu = (ours.cpu_s / ours.batches) / max(torchs.cpu_s / torchs.batches, 1e-9)
    return [f"a batch waits {waited:.3g} times as long as torch's, for {cpu:.3g} times its CPU"]


def _why_none(group: Sequence[Watched]) -> list[str]:
    """Say why there is no comparison, of loaders that torch never came to iterate."""
    ours, torchs = (dict(_sums(group)).get(whose, Passes()) for whose in group[0].passes)
    if _reasons(group) or torchs.epochs or not ours.epochs:
        return []
    return [
        "nothing to compare: torch takes every second epoch of a loader, and this one had no "
        "second; a program that makes its loader anew for each epoch can make it once, before them"
    ]
