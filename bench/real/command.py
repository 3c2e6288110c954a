"""
Five real trainings with torch's loader and with ours, in turns: the same losses, and how fast.

    python -m bench real                                   all of it, into bench/results/real/
    python -m bench real --training jpegs --rounds 9       one of it, printed only
    python -m bench real --training text --start spawn     with workers that are started so

A training whose packages are missing is skipped; `make bench-real` installs them all.
"""

import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.driver import children, middle, ratio, runnable
from bench.question import Options, Question, Table, number, several
from bench.real.run import STARTS, run
from bench.real.trainings import TRAININGS
from bench.report import machine, table

COLUMNS = {
    "training": "training",
    "loader": "contender",
    "ms per step": "ms",
    "range": "range",
    "times torch": "times_torch",
    "waiting": "waiting",
    "trainer CPU ms": "trainer_cpu_ms",
    "all CPU ms": "all_cpu_ms",
    "trainer faults": "trainer_minor_faults",
    "worker faults": "worker_minor_faults",
    "peak MB": "peak_mb",
    "same losses": "correct",
}
_FIGURES = ("ms", "trainer_cpu_ms", "trainer_minor_faults", "worker_minor_faults", "peak_mb")
_TORCHS, _OURS = "torch", "ours"


def _records(options: Options) -> Iterator[dict]:
    """Yield two rows per training; they are right if every loss of ours was torch's."""
    names = runnable(
        options.training or TRAININGS,
        lambda name: TRAININGS[name].why_not(),
        "no training can run here: make bench-real installs what they need",
    )
    packages = {name for spec in TRAININGS.values() for name in spec.packages.values()}
    versions = {name: machine.version(name) for name in sorted(packages)}
    options.about = machine.about(packages=versions)  # now, because it has the load before the run
    options.is_whole = len(sys.argv) == 2 and names == list(TRAININGS)
    with tempfile.TemporaryDirectory() as folder:
        if any(TRAININGS[name].pictures for name in names):
            from bench.real import photographs  # only now: its packages may be missing

            photographs.write(Path(folder))
        for name in names:
            steps = options.steps or TRAININGS[name].steps
            yield from compared(name, trained(name, steps, options, folder))


def trained(name: str, steps: int, options: Options, folder: str) -> dict[str, list[dict]]:
    """Train with both loaders in turns, in a process for each round."""
    given = {"steps": steps, "folder": folder, "start": options.start}
    rows = {loader: partial(run, name, loader=loader, **given) for loader in (_TORCHS, _OURS)}
    return children(rows, options.rounds)


def compared(name: str, found: dict[str, list[dict]]) -> Iterator[dict]:
    """Yield a record for each loader: medians over the rounds, and what is wrong."""
    pairs = zip(found[_TORCHS], found[_OURS], strict=True)
    wrong = next(filter(None, (mistake(*pair) for pair in pairs)), None)
    for loader, runs in found.items():
        all_cpu_ms = [{"ms": each["trainer_cpu_ms"] + each["worker_cpu_ms"]} for each in runs]
        yield {
            "training": name,
            "contender": loader,
            "steps": len(runs[0]["losses"]) // 2,
            **{figure: middle(runs, figure) for figure in _FIGURES},
            "all_cpu_ms": middle(all_cpu_ms, "ms"),
            "range": table.span([each["ms"] for each in runs]),
            "waiting": f"{middle(runs, 'wait', 100):.0f} %",
            "times_torch": ratio(found[_TORCHS], runs, "ms"),
            "correct": wrong is None,
            "mistakes": {name: wrong} if wrong else {},
            "runs": [{**each, "losses": each["losses"][-1:]} for each in runs],
        }


def mistake(torchs: dict, ours: dict) -> str | None:
    """Say what is wrong: losses that differ in any bit, or a loader that was not ours; or None."""
    if len(torchs["losses"]) != len(ours["losses"]):
        return f"{len(ours['losses'])} steps instead of {len(torchs['losses'])}"
    pairs = zip(torchs["losses"], ours["losses"], strict=True)
    for step, (right, found) in enumerate(pairs):
        if right != found:  # true of nan as well: such a training shows nothing
            return f"step {step}: the loss is {found!r}, with torch's loader {right!r}"
    steps, served = len(ours["losses"]), ours["stats"].get("batches")
    return None if served == steps else f"{served} of {steps} batches were ours"


def _end(options: Options, found: dict[str, list[dict]]) -> None:
    """Publish a whole run that was right."""
    own = found["real"]
    if options.is_whole and all(each["correct"] for each in own):
        table.publish(
            Path(__file__).parents[1] / "results" / "real",
            "Trainings",
            options.about,
            own,
            "Medians over the rounds, their range, and *times torch* as the median of the rounds' "
            "own ratios; more than 1 is faster than torch. CPU and page faults are per step.\n",
            table.markdown(COLUMNS, own),
            "".join(f"- `{name}`: {spec.title}.\n" for name, spec in TRAININGS.items()),
        )


QUESTION = Question(
    Table(COLUMNS, _records),
    {
        "training": several(TRAININGS),
        "rounds": number(5, "processes of each loader"),
        "start": {"choices": list(STARTS), "default": "fork", "help": "how workers are started"},
        "steps": {"type": int, "help": "of an epoch, instead of the training's"},
    },
    _end,
)
