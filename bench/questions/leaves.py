"""
What may be in a batch: torch's time for each kind and ours, if the bits are equal, where they lie.

    python -m bench leaves
    python -m bench leaves --leaf recarray --rounds 5
    python -m bench leaves --page docs/leaves.md

The kinds are those of tests/helpers/leaves: one worker delivers the same few again and again, but
makes tensors anew, because to send one again would be free with torch; the shortest stretch of some
batches counts. "in the slot" means all memory of the leaf. A row whose library is not installed
says so.
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from bench.loads import Made, as_it_is
from bench.question import Options, Question, Table, file, number
from bench.questions.kinds import WRONG, measured
from bench.report import machine
from bench.report.table import markdown
from tests.helpers.leaves import LEAVES
from tests.helpers.leaves.parts import are_same, where

_PAGE_COLUMNS = {
    "value": "leaf",
    "torch, ms": "torch_ms",
    "shmloader, ms": "ours_ms",
    "speed-up": "times_torch",
    "reason": "why",
}
_PAGE_MARKS = ("<!-- measured: begin -->\n", "<!-- measured: end -->\n")
_NO_FIGURES = {"torch_ms": None, "ours_ms": None, "times_torch": None, "bits": "-", "in_slot": "-"}
_KEPT = 3  # leaves that a worker has made, and delivers in turns
_STRETCH = 10  # batches; the shortest counts, because a wake-up may take longer than a batch
_STRETCHES = 4


def _records(options: Options) -> Iterator[dict]:
    """Yield a row for each leaf; it is right if it is what the table of leaves promises."""
    for name in LEAVES:
        if not name.startswith(tuple(options.leaf or [""])):
            continue
        leaf = LEAVES[name]
        missing = leaf.missing()
        if missing:
            found = {"why": f"needs {missing}"}
        else:
            found = _here(partial(run, name, options.rounds))
        if "mistake" in found:
            found = {"why": found["mistake"], "correct": False}
        yield {"leaf": name, "why": leaf.why, **_NO_FIGURES, **found}


def _here(row: partial) -> dict[str, Any]:
    try:
        return row()
    except Exception as error:  # any error is the row's content
        return {"mistake": str(error).partition("\n")[0]}


def _end(options: Options, found: dict[str, list[dict]]) -> None:
    """Write the page, if one is named."""
    if not options.page:
        return
    begin, finish = _PAGE_MARKS
    before, _, rest = options.page.read_text().partition(begin)
    table = markdown(_PAGE_COLUMNS, found["leaves"])
    about = f"{machine.sentence(machine.about())}.\n"
    options.page.write_text(f"{before}{begin}{table}\n{about}{finish}{rest.partition(finish)[2]}")


def run(name: str, rounds: int) -> dict[str, Any]:
    """Deliver a leaf by both loaders in turns, each so often."""
    leaf, lies = LEAVES[name], set()

    def is_same(one: Any, own: Any) -> bool:
        lies.add(where(own))
        return are_same(one, own)

    count = _STRETCHES * _STRETCH + 1
    dataset = Made(count, partial(_leaf_of, name, {}))
    load = {"dataset": dataset, "batch_size": None, "collate_fn": as_it_is}
    found = measured(load, rounds, _stretch, is_same, num_workers=1)
    said = found["said"].partition(" ")[0]
    return {
        "torch_ms": found["torch"]["ms"] if "torch" in found else None,
        "ours_ms": found["ours"]["ms"],
        "times_torch": found["times torch"],
        "bits": said,
        "in_slot": {"all": "yes", "none": "no"}.get("".join(lies), "in part"),
        "correct": said != WRONG and (lies == {"all"}) == leaf.in_slot,
    }


def _leaf_of(name: str, made: dict[int, Any], index: int) -> Any:
    """Give one of a few leaves in turns, made in the worker; anew if torch would move them."""
    leaf, place = LEAVES[name], index % _KEPT
    if leaf.holds_tensors:
        return leaf.make()
    if place not in made:
        made[place] = leaf.make()
    return made[place]


def _stretch(loader: Any) -> dict[str, float]:
    """Time a batch in the shortest stretch of an epoch."""
    arrived = [time.perf_counter() for _ in loader]
    pairs = zip(arrived, arrived[_STRETCH:], strict=False)
    return {"ms": min(end - start for start, end in pairs) / _STRETCH * 1e3}


QUESTION = Question(
    Table({**_PAGE_COLUMNS, "bits": "bits", "in the slot": "in_slot"}, _records),
    {
        "leaf": {"action": "append", "help": "a row's name, or how some begin; may be repeated"},
        "rounds": number(3, "in turns with torch's loader"),
        "page": file("gets the table between its marks"),
    },
    _end,
)
