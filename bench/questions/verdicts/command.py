"""
Loads of which the cause is known, run live: the causes that `report()` names, and its advice tried.

    python -m bench verdicts
    python -m bench verdicts --load 'a stream' --load 'draws slowly'

Each load runs once as it is, once with the advice, and if that still waits, with each of a grid of
settings. The best of those then take turns with the advice: the fastest of many single runs is
mostly the luckiest. Beside other programs the advice takes turns with none.
"""

import os
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from bench.driver import in_turns, ratio
from bench.loads.costs import burn, other_programs
from bench.loops import play
from bench.question import Options, Question, flag, several
from bench.questions.verdicts.loads import CAUSES, LOADS, Load, make
from bench.report.table import markdown
from shmloader import DataLoader
from shmloader.advice.report import Report

_RIGHT_SHARE = 0.95
_GRID = tuple({"num_workers": n, "prefetch_factor": p} for n in (1, 2, 4, 8, 12) for p in (2, 8))
_WAITS_LITTLE = 0.10
_NEAR = 0.90  # of the best rate
_BEST = 3  # settings of the search that are measured again
_ROUNDS = 3
_LESS = 0.9  # of what the advice promised: as much is noise


def _records(options: Options) -> Iterator[dict]:
    """Yield a row per load."""
    warnings.simplefilter("ignore")
    for name in options.load or LOADS:
        load = LOADS[name]
        with other_programs(len(os.sched_getaffinity(0)) if load.others else 0):
            yield _judge(load, options.no_advice or CAUSES[name] == "start")


def _end(_: Options, found: dict[str, list[dict]]) -> bool:
    """Print the confusions. Returns True if 95 % of causes and of advice are right."""
    judged = found["verdicts"]
    pairs = [(record["right"], record["named"]) for record in judged]
    _show(Counter(pairs))
    right = sum(cause == named for cause, named in pairs)
    good = sum(record["good"] is not False for record in judged)
    print(f"right: {right} of {len(judged)} causes, {good} of {len(judged)} pieces of advice")
    return min(right, good) >= _RIGHT_SHARE * len(judged)


def _named(load: Load, report: Report) -> str:
    """Returns the cause that is named, in the words of this table."""
    if report.facts.get("cores_of_others") and report.cause in ("cpu", "step"):
        return "others"
    if CAUSES[load.name] == "start" and "persistent_workers=True" in str(report):
        return "start"
    return report.cause or "none"


def _judge(load: Load, without_advice: bool) -> dict[str, Any]:
    report, rate = run(load)
    record = {
        "load": load.name,
        "right": CAUSES[load.name],
        "named": _named(load, report),
        "waits": f"{report.facts.get('wait_share', 0):.0%}",
        "advice": ", ".join(f"{name}={value}" for name, value in report.advice.items()),
        "then waits": "",
        "of the best": "",
        "good": "" if without_advice else True,
    }
    if without_advice:
        return record
    if load.others:
        record["good"] = not report.advice or _keeps_its_promise(load, report)
        return record
    after = report if not report.advice else run(load, **report.advice)[0]
    wait = after.facts.get("wait_share", 1.0)
    record["then waits"] = f"{wait:.0%}"
    if wait > _WAITS_LITTLE:
        of_best = _of_the_best(load, report.advice, rate)
        record["of the best"] = f"{of_best:.2f}"
        record["good"] = of_best >= _NEAR
    return record


def _keeps_its_promise(load: Load, report: Report) -> bool:
    """Returns True if the loop is faster with the advice, by about as much as it says."""
    runs = _in_turns(load, [{}, report.advice])
    promised = report.facts["advised_batches_per_s"] / report.facts["batches_per_s"]
    return ratio(runs[1], runs[0], "rate") >= max(1.0, _LESS * promised)


def _of_the_best(load: Load, advice: dict[str, Any], rate: float) -> float:
    """
    Search the best settings, and compare the rate with the advice to theirs.

    They take turns, and ratios are taken within a round: other programs come and go.
    """
    found = [(rate, {}), *((run(load, **changed)[1], changed) for changed in _grid(load))]
    found.sort(key=lambda each: each[0], reverse=True)
    best = [changed for _, changed in found[:_BEST] if changed != advice]
    with_advice, *others = _in_turns(load, [advice, *best])
    return min([1.0, *(ratio(with_advice, runs, "rate") for runs in others)])


def _in_turns(load: Load, settings: list[dict[str, Any]]) -> list[list[dict]]:
    """Measure the rate with each setting, in turns."""
    runs = in_turns(
        range(len(settings)), _ROUNDS, lambda number: {"rate": run(load, **settings[number])[1]}
    )
    return list(runs.values())


def _grid(load: Load) -> list[dict[str, Any]]:
    # The default of slots and ring_bytes: what the load was given may be what is wrong.
    defaults = {name: None for name in ("slots", "ring_bytes") if name in load.options}
    grid = [
        each for each in _GRID if 4 * each["num_workers"] * each["prefetch_factor"] <= load.batches
    ]
    return [{**changed, **defaults} for changed in grid]


def run(load: Load, **changed: Any) -> tuple[Report, float]:
    """
    Run one epoch; what is reported of it, and the batches per second of its middle half.

    The last batches of an epoch order no others, which a slow sampler would have to draw, and what
    was ordered at the start was made while nothing was used: both ends are no measure.
    """
    held: deque[Any] = deque(maxlen=load.keeps)

    def step(batch: Any) -> None:
        held.append(batch)
        (burn if load.burns else time.sleep)(load.step_s)

    with make(load, DataLoader, **changed) as loader:
        came = play(loader, step).came
        report = loader.report()
    first, last = len(came) // 4, len(came) * 3 // 4
    return report, (last - first) / (came[last] - came[first])


def _show(confusions: Counter[tuple[str, str]]) -> None:
    """Print how often which cause was named for which."""
    named = sorted({name for _, name in confusions})
    rows = [
        {"right / named": cause, **{name: confusions[cause, name] or "" for name in named}}
        for cause in sorted({cause for cause, _ in confusions})
    ]
    print(f"\n{markdown({name: name for name in rows[0]}, rows)}")


QUESTION = Question(
    _records, {"load": several(LOADS), "no_advice": flag("judge the causes alone")}, _end
)
