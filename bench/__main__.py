"""
Every contender on every workload, one process per run, contenders alternated.

    python -m bench                                        all of it, into bench/results/
    python -m bench --workload cifar --contender ours      one of it, into bench/results/partial/
    python -m bench --before ../earlier                    another checkout's shmloader beside it
    python -m bench --redraw bench/results                 table and pictures of an earlier run
    python -m bench caching | cliffs | collates | deep | device | edges | gil | growth | kinds
    python -m bench lists | memory | permutations | polite | resume | retention | scale
    python -m bench scaling | stalls | start | streaming | threads | trainer | tune | verdicts
                                                           one question each, see README.md
    python -m bench real                                   five real trainings, beside torch
    python -m bench terminals                              the pictures of docs/tuning.md
"""

import argparse
import importlib
import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from bench import contenders, processes
from bench.report import machine, pictures, table
from bench.report.results import Results
from bench.run import add_shared_options
from bench.workloads import WORKLOADS

RESULTS = Path(__file__).parent / "results"
RUNS, ABOUT, TABLE = "runs.jsonl", "machine.json", "table.md"

_QUICK = {"repeats": 1, "epochs": 2}
_DEFAULT = {"repeats": 5, "epochs": 5}

# Options with which a run is no whole one.
_PARTIAL = ("workload", "contender", "before", "quick", "batches", "restart")

_QUESTIONS = (
    "caching",
    "cliffs",
    "collates",
    "deep",
    "device",
    "edges",
    "gil",
    "growth",
    "kinds",
    "lists",
    "memory",
    "permutations",
    "polite",
    "resume",
    "retention",
    "scale",
    "scaling",
    "stalls",
    "start",
    "streaming",
    "threads",
    "trainer",
    "tune",
    "verdicts",
)
_COMMANDS = {
    **{name: f"bench.questions.{name}" for name in _QUESTIONS},
    "real": "bench.real.command",
    "terminals": "bench.terminals",
    "w1": "bench.questions.scaling",  # its name in earlier results
}

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
    total = options.repeats * len(loads) * len(names)
    for repeat in range(options.repeats):
        for place, load in enumerate(loads):
            for turn in range(len(names)):
                # Another one comes first each time, so that none has the same place throughout.
                name = names[(turn + repeat) % len(names)]
                begin = time.perf_counter()
                checkout = options.before if name == contenders.BEFORE else None
                record = {"repeat": repeat, **processes.run(load, name, options, checkout)}
                number = (repeat * len(loads) + place) * len(names) + turn + 1
                _progress(f"{number}/{total}", record, time.perf_counter() - begin)
                yield record


def _chosen(options: argparse.Namespace) -> list[str]:
    everybody = contenders.names() if options.peers else contenders.own()
    names = _runnable(options.contender or everybody)
    return [*names, contenders.BEFORE] if options.before else names


def _runnable(wanted: list[str]) -> list[str]:
    """Drop the contenders that cannot run here, and say why."""
    found = []
    for name in wanted:
        reason = contenders.why_not(contenders.load(name))
        if reason:
            console.print(f"skipped {name}: {reason}")
        else:
            found.append(name)
    if not found:
        sys.exit("no contender can run here")
    return found


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
    """Write the table and the pictures of the runs in `folder`, and print the comparison."""
    results = Results.read(folder / RUNS)
    about = json.loads((folder / ABOUT).read_text())
    (folder / TABLE).write_text(table.markdown(results, about))
    table.show(results)
    for path in [folder / TABLE, *pictures.draw(results, folder)]:
        console.print(f"wrote {path}", highlight=False)
    return 0 if all(run["correct"] for run in results.runs) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
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
    parser.add_argument("--redraw", type=Path, metavar="FOLDER", help="run nothing, draw again")
    add_shared_options(parser)
    parser.set_defaults(epochs=None)
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
    module = _COMMANDS.get(sys.argv[1]) if len(sys.argv) > 1 else None
    return importlib.import_module(module).main(sys.argv[2:]) if module else main()


if __name__ == "__main__":
    sys.exit(_command())
