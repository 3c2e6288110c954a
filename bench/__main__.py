"""
Every contender on every workload, one process per run, contenders alternated.

    python -m bench                                        all of it, into bench/results/
    python -m bench --workload cifar --contender ours      one of it, into bench/results/partial/
    python -m bench --before ../earlier                    another checkout's shmloader beside it
    python -m bench --redraw bench/results                 the table of an earlier run
    python -m bench real                                   five real trainings, beside torch
    python -m bench terminals                              the pictures of docs/tuning.md
    python -m bench QUESTION                               one question, see README.md
"""

import argparse
import importlib
import json
import shlex
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from pkgutil import iter_modules

from rich.console import Console

from bench import contenders, driver, questions, run, syscalls
from bench.loads.pools import WORKLOADS
from bench.report import machine, table
from bench.report.results import Results

RESULTS = Path(__file__).parent / "results"
RUNS, ABOUT, TABLE = "runs.jsonl", "machine.json", "table.md"

_QUICK = {"repeats": 1, "epochs": 2}
_DEFAULT = {"repeats": 5, "epochs": 5}

# Options with which a run is no whole one.
_PARTIAL = ("workload", "contender", "before", "quick", "batches", "restart")

# Options that are those of a run.
_HANDED_ON = ("workers", "epochs", "batches", "context", "restart", "syscalls")

_QUESTIONS = {
    each.name: f"bench.questions.{each.name}" for each in iter_modules(questions.__path__)
}
_COMMANDS = {**_QUESTIONS, "real": "bench.real", "terminals": "bench.terminals"}

console = Console(stderr=True)


def main() -> int:
    """Run what the options name; the exit code is 0 if every batch was right."""
    options = _options()
    if options.redraw:
        return _report(options.redraw)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / ABOUT).write_text(json.dumps(_about(options), indent=2) + "\n")
    with (options.out / RUNS).open("w") as lines:
        for record in _records(options):
            lines.write(json.dumps(record) + "\n")
            lines.flush()
    return _report(options.out)


def _about(options: argparse.Namespace) -> dict:
    before = {"before": machine.commit(options.before)} if options.before else {}
    command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
    return {**machine.describe(), **before, "command": command}


def _records(options: argparse.Namespace) -> Iterator[dict]:
    """Yield a record per run: each contender once per workload, then all again, rotated."""
    names = _chosen(options)
    loads = options.workload or list(WORKLOADS)
    order = list(driver.turns(names, options.repeats))
    total, number = len(loads) * len(order), 0
    for repeat in range(options.repeats):
        turn = order[repeat * len(names) : (repeat + 1) * len(names)]
        for load, name in product(loads, turn):
            begin, number = time.perf_counter(), number + 1
            checkout = options.before if name == contenders.BEFORE else None
            row = run.Row(load, name, **{each: getattr(options, each) for each in _HANDED_ON})
            record = {"repeat": repeat, **run.alone(row, checkout)}
            _progress(f"{number}/{total}", record, time.perf_counter() - begin)
            yield record


def _chosen(options: argparse.Namespace) -> list[str]:
    everybody = contenders.names() if options.peers else contenders.own()
    names = driver.runnable(
        options.contender or everybody,
        lambda name: contenders.why_not(contenders.load(name)),
        "no contender can run here",
    )
    return [*names, contenders.BEFORE] if options.before else names


def _progress(turn: str, record: dict, seconds: float) -> None:
    cost = "   refused  " if record.get("refused") else "   failed   "
    if "ms_per_batch" in record:
        cost = f"{record['ms_per_batch']:9.3f} ms"
    name = f"{record['workload']:<11} {record['contender']:<10}"
    console.print(f"{turn:>8}  {name} {cost}  ({seconds:.1f} s)", highlight=False)
    if not record["correct"]:
        reason = record["mistake"].splitlines()[-1]
        console.print(f"          WRONG: {reason}", markup=False, soft_wrap=True)


def _report(folder: Path) -> int:
    """Write the table of the runs in `folder`, and print the comparison."""
    results = Results.read(folder / RUNS)
    about = json.loads((folder / ABOUT).read_text())
    (folder / TABLE).write_text(table.markdown(results, about))
    table.show(results)
    console.print(f"wrote {folder / TABLE}", highlight=False)
    return 0 if all(run["correct"] for run in results.runs) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=f"questions: {', '.join(_QUESTIONS)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="may be repeated")
    parser.add_argument("--contender", action="append", choices=contenders.names())
    parser.add_argument("--peers", action="store_true", help="other projects' loaders as well")
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT", help="run its shmloader too, built there"
    )
    parser.add_argument("--repeats", type=int, help="processes per contender and workload")
    parser.add_argument("--quick", action="store_true", help="one repeat of two epochs")
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--redraw", type=Path, metavar="FOLDER", help="run nothing, write it again")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, help="timed epochs after the warm-up")
    parser.add_argument("--batches", type=int, help="batches per epoch instead of the workload's")
    parser.add_argument("--context", default="fork", choices=run.CONTEXTS, help="start method")
    parser.add_argument(
        "--restart", action="store_true", help="start the workers anew in every epoch"
    )
    lacking = syscalls.missing()
    parser.add_argument(
        "--syscalls",
        action="store_true",
        help="count system calls with strace, after the timed epochs"
        + (f" ({lacking})" if lacking else ""),
    )
    options = parser.parse_args()
    if options.before and not any(options.before.glob("shmloader/**/_core*.so")):
        parser.error(f"--before: no shmloader is built in {options.before}")
    for name, value in (_QUICK if options.quick else _DEFAULT).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.out = options.out or _default_folder(options)
    return options


def _default_folder(options: argparse.Namespace) -> Path:
    """Only a whole run may replace the published results."""
    chosen = [getattr(options, name) for name in _PARTIAL]
    if any(chosen):
        return RESULTS / "partial"
    return RESULTS / "peers" if options.peers else RESULTS


def _command() -> int:
    """Run the command that the first argument names, or the whole comparison."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in _COMMANDS:
        return main()
    module = importlib.import_module(_COMMANDS[name])
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{module.__name__}.command")
    return driver.ask(name, module, sys.argv[2:])


if __name__ == "__main__":
    sys.exit(_command())
