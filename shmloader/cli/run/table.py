"""The table at the end of a run, and what torch's loader took beside ours."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from shmloader.advice.report import report_on
from shmloader.cli.run.epochs import OURS, TORCHS, Took, Watched
from shmloader.stats.words import times
from shmloader.trainer.service import Evidence

_HEADINGS = ("by", "epochs", "batches", "waited, s", "ms a batch", "CPU ms a batch")
_LOSSES = (
    "Losses may differ from those of a plain run, because half of the epochs ran in torch's "
    "workers: see `shmloader run --help`"
)


def lines(
    seen: Sequence[Watched],
    evidence: Mapping[tuple[str, int | None], Evidence],  # by the kinds of loaders
    seconds: float,
    process: str = "",  # if it is not the program's first
    compares: bool = False,  # torch was to iterate every second epoch of each loader
) -> list[str]:
    """Say what the loaders of a process did; alike ones, as those made anew, are one."""
    rows: list[tuple[str, str, Took]] = []
    remarks: list[str] = []
    for title, group in _alike(seen):
        took = {by: sum((each.took[by] for each in group), Took()) for by in (OURS, TORCHS)}
        # One that never iterated is left out, unless neither did.
        iterated = [(title, by, each) for by, each in took.items() if each.epochs]
        rows += iterated or [(title, "-", took[OURS])]
        reasons = sorted({each.reason for each in group if each.reason})
        found = [f"runs with torch's own loader: {reason}" for reason in reasons]
        found += [
            *_comparison(group, bool(reasons), compares),
            *_verdict(evidence.get(group[0].kind)),
        ]
        remarks += [f"{title}:", *(f"  {text}" for text in found)] if found else []
    if any(all(took.epochs for took in each.took.values()) for each in seen):
        remarks.append(_LOSSES)
    return [
        f"shmloader run{process and ', ' + process}: {times(len(seen), 'loader')}, {seconds:.1f} s "
        "since the first iter() of a loader",
        *table("loader", rows),
        *remarks,
    ]


def _alike(seen: Sequence[Watched]) -> Iterator[tuple[str, list[Watched]]]:
    groups: dict[tuple[str, int | None], list[Watched]] = {}
    for watched in seen:
        groups.setdefault(watched.kind, []).append(watched)
    shared = Counter(title for title, _ in groups)
    for (title, length), group in groups.items():
        if shared[title] > 1:
            title += f", {length or 'unknown'} batches"
        yield (f"{title} ({len(group)} times)" if len(group) > 1 else title), group


def _verdict(evidence: Evidence | None) -> Sequence[str]:
    """Say what limits the loop, and the first thing to change, where there were enough batches."""
    report = report_on(*evidence) if evidence is not None else None
    return report.lines[:2] if report is not None and report.cause is not None else ()


def _comparison(group: Sequence[Watched], is_torchs: bool, compares: bool) -> list[str]:
    """Say what changed if both have iterated; why not, if both were to and torch never came to."""
    # Loaders that only one iterated say nothing, and of the others equally much of both counts.
    both = [each.took for each in group if all(took.batches for took in each.took.values())]
    if both:
        counts = [min(took.batches for took in each.values()) for each in both]
        torchs, ours = (
            sum((each[by].of(count) for each, count in zip(both, counts, strict=True)), Took())
            for by in (TORCHS, OURS)
        )
        return [compared(torchs, ours)]
    has_begun = {by for each in group for by, took in each.took.items() if took.epochs}
    if not compares or is_torchs or has_begun != {OURS}:
        return []
    return [
        "nothing to compare: torch's own loader runs every second epoch of a loader, and this "
        "loader had only one. If the program makes a new loader for each epoch, make one before "
        "the epochs"
    ]


def table(loads: str, rows: Sequence[tuple[str, str, Took]]) -> list[str]:
    """Say what loaders took, in columns."""
    lines = [(loads, *_HEADINGS), *((title, by, *_figures(took)) for title, by, took in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    form = "  ".join(f"{{:{'<' if at < 2 else '>'}{width}}}" for at, width in enumerate(widths))
    return [form.format(*line).rstrip() for line in lines]


def _figures(took: Took) -> list[str]:
    waits = f"{took.waited_s:.2f}", f"{took.batch_s * 1e3:.3f}", f"{took.batch_cpu_s * 1e3:.3f}"
    return [str(took.epochs), str(took.batches), *waits]


def compared(torchs: Took, ours: Took) -> str:
    """Say how much less or more a batch takes with ours than with torch's loader."""
    waits = _change(ours.batch_s / max(torchs.batch_s, 1e-9))
    cpu = _change(ours.batch_cpu_s / max(torchs.batch_cpu_s, 1e-9))
    return f"waits {waits} per batch than torch's loader, and uses {cpu} CPU"


def _change(part: float) -> str:
    """Say what part of a time another one is: "18 % less"."""
    change = 100 * abs(1 - part)
    # Not "100 % less" of a wait that is there.
    number = f"{change:.0f}" if change < 99.5 or part > 1 else f"{change:.1f}"
    return f"{number} % {'more' if part > 1 else 'less'}"
