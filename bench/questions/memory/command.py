"""
How little memory a run needs, beside torch's, and what all of its processes take over time.

    python -m bench memory
    python -m bench memory --part curves --picture bench/results/memory.png
    python -m bench memory --part growth

need and curves are over the same loads. curves: with and without each cure. growth: the anonymous
memory of workers, with what they inherited. bench/README.md says how.
"""

import itertools
import resource
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench import groups
from bench.driver import Ended, Row, alone, in_turns, middle
from bench.loaders import LOADERS
from bench.loads.leaks import LEAK_BYTES
from bench.question import Options, Question, file, number, several
from bench.questions.memory.run import GROWTH, LOADS, run
from bench.report.strips import strips
from bench.usage import all_mb, descendants
from shmloader.memory import limits

_SHARE, _LEAKS = 0.6, "leaks 5 MB a sample"
_AMPLE_MB = 1e6
_FROM, _TO = 0.4, 1.04  # times the most that the group held without a limit
_STEPS = 4
_EVERY_S, _LONGEST_S = 0.2, 300
_COLOURS = {"torch": "#0071bc", "ours": "#c1272d"}
_NAMES = {"torch": "torch", "ours": "shmloader"}


def _need(options: Options) -> Iterator[dict]:
    lacking = groups.why_not()
    if lacking:
        print(f"{lacking}: needs are the most that looks found.\n")
    for name in options.load or LOADS:
        load, need = LOADS[name], _most_mb if lacking else _least_mb
        ours = _row(name, "ours", bool(load.cure), options)
        torch_mb, digest = need(_row(name, "torch", False, options))
        ours_mb, found = need(ours)
        given_mb = _SHARE * torch_mb
        ends = [groups.run(ours, given_mb)[0] for _ in range(0 if lacking else options.rounds)]
        yield {
            "what takes the memory": load.grows,
            "cure": load.cure or "none",
            "torch needs, MB": torch_mb,
            "ours gets, MB": given_mb,
            "outcome": ", ".join(dict.fromkeys(each.reason for each in ends)),
            "ours needs, MB": ours_mb,
            "times torch": ours_mb / torch_mb,
            "correct": {digest} == {found, *map(_digest, ends)} and ours_mb <= given_mb,
        }


def _row(name: str, loader: str, cure: bool, options: Options) -> Row:
    return partial(run, name, loader, cure, options.of_samples, options.workers)


def _digest(ended: Ended) -> str | None:
    return ended.found and ended.found["digest"]


def _most_mb(row: Row) -> tuple[float, str]:
    """Return the most that looks at a run find, in MB, and the digest of its batches."""
    looks, digest = _watched(row)
    return max(mb for _, mb in looks), digest


def _watched(row: Row) -> tuple[list[tuple[float, float]], str]:
    """
    Run a row, and look from outside at its memory: seconds and MB, and the digest of its batches.

    Counted are anonymous pages and shared objects, mapped or not: our workers drop the pages of
    large batches from their page tables, and torch's batches in flight are mapped nowhere.
    """
    looks: list[tuple[float, float]] = []

    def look(pid: int) -> None:
        now, workers = time.monotonic(), descendants(pid)
        if workers:
            looks.append((now, all_mb([pid, *workers])))
        time.sleep(max(0.0, now + _EVERY_S - time.monotonic()))

    digest = alone(row, _LONGEST_S, look=look)["digest"]
    return [(round(now - looks[0][0], 2), round(mb, 1)) for now, mb in looks], digest


def _least_mb(row: Row) -> tuple[float, str]:
    """Find the smallest group, in MB, in which a run passes, and its digest."""
    free, most_mb = groups.run(row, _AMPLE_MB)
    if free.found is None or most_mb is None:
        raise RuntimeError(f"{row} fails without a limit: {free.reason}")
    low, high = _FROM * most_mb, _TO * most_mb
    for _ in range(_STEPS):
        tried = (low + high) / 2
        if _digest(groups.run(row, tried)[0]) == free.found["digest"]:
            high = tried
        else:
            low = tried
    return high, free.found["digest"]


def _curves(options: Options) -> Iterator[dict]:
    for name in options.load or [name for name, load in LOADS.items() if load.cure]:
        load, digests = LOADS[name], set()
        for loader, cure in itertools.product(LOADERS, ("", load.cure)):
            if cure and loader == "torch" and not load.cured:
                continue
            looks, digest = _watched(_row(name, loader, bool(cure), options))
            digests.add(digest)
            seconds, mb = zip(*looks, strict=True)
            yield {
                "load": load.grows,
                "loader": loader,
                "cure": cure,
                "seconds": list(seconds),
                "mb": list(mb),
                "s": seconds[-1],
                "most, MB": max(mb),
                "at the end, MB": mb[-1],
                "correct": len(digests) == 1,
            }


def _growth(options: Options) -> Iterator[dict]:
    """Yield a row without the leak and those with it; they are right if the digests are equal."""
    load, cases = GROWTH["growth"], {"without the leak": ("no growth", False)}
    if 2 * load.samples * LEAK_BYTES < (limits.available_bytes() or 0):
        cases[f"{_LEAKS}, never replaced"] = "growth", False
    cases[_LEAKS] = "growth", True
    rows = {what: _row(name, "ours", cure, options) for what, (name, cure) in cases.items()}
    runs = in_turns(rows, options.rounds, lambda what: _grown(rows[what]))
    for what, found in runs.items():
        yield {
            "dataset": what,
            "worker_bytes, MB": load.ours["worker_bytes"] / 1e6 if what == _LEAKS else None,
            "s": middle(found, "seconds"),
            "replaced": max(run["replaced"] for run in found),
            "most of a worker, MB": max(run["peak_mb"] for run in found),
            "correct": len({run["digest"] for own in runs.values() for run in own}) == 1,
        }


def _grown(row: Row) -> dict:
    """Run a row, and look at its workers."""
    looks = [0.0]

    def look(pid: int) -> None:
        looks.extend(map(_anonymous_mb, descendants(pid)))
        time.sleep(0.05)

    return {**alone(row, _LONGEST_S, look=look), "peak_mb": max(looks)}


def _anonymous_mb(pid: int) -> float:
    """Read what the kernel has at hand: a walk over all pages would keep the process from work."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except (OSError, ValueError):  # it has just ended
        return 0.0
    return (resident - shared) * resource.getpagesize() / 1e6


def _end(options: Options, found: dict[str, list[dict]]) -> None:
    """Draw the curves: a strip for each load, dashed without its cure and solid with it."""
    if "curves" not in found or not options.picture:
        return
    loads = list(dict.fromkeys(record["load"] for record in found["curves"]))
    size, titles = (4.2 * len(loads), 3.9), ("seconds", "MB of all processes")
    with strips(options.picture, 1, len(loads), size, *titles, False) as all_:
        for axes, load in zip(all_, loads, strict=True):
            for record in (each for each in found["curves"] if each["load"] == load):
                cure = f", {record['cure'].replace('`', '')}" if record["cure"] else ""
                axes.plot(
                    record["seconds"], record["mb"], label=_NAMES[record["loader"]] + cure,
                    color=_COLOURS[record["loader"]], linestyle="-" if cure else "--",
                )  # fmt: skip
                axes.set_title(record["load"], loc="left", fontsize=10)
            axes.set_ylim(bottom=0)
            # Below: in the middle it would hide the ends of curves.
            axes.legend(
                frameon=False, fontsize=8, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.17)
            )


QUESTION = Question(
    {"need": _need, "curves": _curves, "growth": _growth},
    {
        "load": several(LOADS),
        "workers": {"type": int, "help": "instead of the loads' own numbers"},
        "rounds": number(3, "runs in 60 %% of torch's memory, and of growth"),
        "of_samples": number(1.0, "the part of the samples that is loaded"),
        "picture": file("of the part curves"),
    },
    _end,
)
