"""
What a batch costs, if fetching is free: every contender on every workload, in turns.

    python -m bench                                        all of it, into bench/results/
    python -m bench --workload cifar --contender ours      one of it, into bench/results/partial/
    python -m bench --before ../earlier                    another checkout's shmloader beside it
    python -m bench QUESTION                               another question, see README.md
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

from bench import contenders, run
from bench.contenders import BASELINE, BEFORE, LIMIT, SUBJECT
from bench.driver import in_turns, middle, mistakes, ratios, runnable, tried
from bench.loads.pools import WORKLOADS
from bench.question import Options, Question, Table, flag, number, several
from bench.report import chart, machine, table

RESULTS = Path(__file__).parents[1] / "results"

COLUMNS = {
    "workload": "workload",
    "contender": "label",
    "MB": "batch_mb",
    "ms per batch": "ms_per_batch",
    "range": "range",
    "times torch": "times_torch",
    "efficiency": "efficiency",
    "times before": "times_before",
    "correct": "correct",
}
_DETAILS = {
    "workload": "workload",
    "contender": "label",
    "next() ms median": "next_ms_median",
    "p99": "next_ms_p99",
    "trainer CPU ms": "trainer_cpu_ms",
    "of it touching": "touch_cpu_ms",
    "worker CPU ms": "worker_cpu_ms",
    "faults trainer": "trainer_minor_faults",
    "major": "trainer_major_faults",
    "faults workers": "worker_minor_faults",
    "switches": "trainer_voluntary_switches",
    "descriptors": "descriptors_peak",
    "shared MB": "shared_mb_peak",
    "private MB": "private_mb_peak",
    "first batch s": "first_batch_s",
    "next epoch ms": "epoch_first_batch_ms",
}
_FIGURES = ("batch_mb", "ms_per_batch", *list(_DETAILS.values())[2:])

_COMPARED = (BASELINE, LIMIT, BEFORE)
_RUN_S = 300  # a run that takes longer has failed

# Options with which a run is no whole one; those of a run.
_PARTIAL = ("workload", "contender", "before", "quick", "batches")
_HANDED_ON = ("workers", "epochs", "batches")


def records(options: Options) -> Iterator[dict]:
    """Yield a row per workload and contender; it is right if every batch of all its runs was."""
    options.repeats = options.repeats or (1 if options.quick else 5)
    options.epochs = options.epochs or (2 if options.quick else 5)
    before = {"before": machine.commit(options.before)} if options.before else {}
    options.about = machine.about(**before)  # now, because it has the load before the run
    names = _chosen(options)
    for load in options.workload or WORKLOADS:
        found = in_turns(names, options.repeats, lambda name, load=load: _run(load, name, options))
        yield from (_record(name, found) for name in names)


def end(options: Options, found: dict[str, list[dict]]) -> None:
    """Write the page; only a whole run may replace the published results."""
    own = found["transport"]
    refusals = [
        f"- {each['label']} refuses {each['workload']}: {each['refused']}.\n"
        for each in own
        if each["refused"]
    ]
    folder = RESULTS / "peers" if options.peers else RESULTS
    if any(getattr(options, name) for name in _PARTIAL):
        folder = RESULTS / "partial"
    table.publish(
        folder,
        "Results",
        options.about,
        own,
        "Lower is better except in the two ratios; the range is over the repeats. "
        f"The ratios are taken within each repeat, against {BASELINE} and {LIMIT}.\n",
        table.markdown(COLUMNS, own),
        "".join(refusals),
        "Per batch, except the peaks (held above what the process had before the loader was made) "
        "and the seconds. Descriptors and memory are those of all processes together.\n",
        table.markdown(_DETAILS, [each for each in own if each["contender"] != LIMIT]),
    )
    if not options.peers:
        chart.write(folder / "chart.svg", own)


def _chosen(options: Options) -> list[str]:
    everybody = contenders.names() if options.peers else contenders.OWN
    names = runnable(
        options.contender or everybody,
        lambda name: contenders.contenders()[name].available(),
        "no contender can run here",
    )
    return [*names, BEFORE] if options.before else names


def _run(load: str, name: str, options: Options) -> dict:
    given = {each: getattr(options, each) for each in _HANDED_ON}
    row = partial(run.run, workload=load, contender=name, **given)
    with run.shmloader_of(options.before if name == BEFORE else None) as variables:
        return {**row.keywords, **tried(row, _RUN_S, **variables)}


def _record(name: str, found: dict[str, list[dict]]) -> dict:
    own = found[name]
    times = {other: ratios(found.get(other), own, "ms_per_batch") for other in _COMPARED}
    refused, wrong = own[-1].get("refused"), mistakes({name: own})
    before = times[BEFORE] if name == SUBJECT else []
    return {
        "workload": own[-1]["workload"],
        "contender": name,
        "label": own[-1].get("label", name),
        **{figure: middle(own, figure) for figure in _FIGURES},
        "range": table.span([run["ms_per_batch"] for run in own if run.get("ms_per_batch")]),
        "times_torch": median(times[BASELINE]) if times[BASELINE] else None,
        "efficiency": median(times[LIMIT]) if times[LIMIT] else None,
        "times_before": f"{table.figure(median(before))} ({table.span(before)})" if before else "-",
        "correct": "-" if refused else not wrong,
        "refused": refused,
        "mistakes": wrong,
        "runs": own,
    }


QUESTION = Question(
    Table(COLUMNS, records),
    {
        "workload": several(WORKLOADS),
        "contender": several(contenders.names()),
        "peers": flag("other projects' loaders as well"),
        "before": run.BEFORE,
        "repeats": {"type": int, "help": "processes per contender and workload"},
        "quick": flag("one repeat of two epochs"),
        "workers": number(2),
        "epochs": {"type": int, "help": "timed epochs after the warm-up"},
        "batches": {"type": int, "help": "batches per epoch instead of the workload's"},
    },
    end,
)
