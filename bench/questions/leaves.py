"""
The table of leaves: torch's time for each kind and ours, if the bits are equal, and where they lie.

    python -m bench leaves
    python -m bench leaves --leaf recarray --rounds 5
    python -m bench leaves --page docs/leaves.md

The kinds are those of tests/helpers/leaves. Both loaders take turns: one worker delivers the same
few leaves again and again, but makes tensors anew, because to send one again would be free with
torch; the shortest stretch of some batches counts. Pointers are looked up in the trainer: "in the
slot" means all memory of the leaf. A row whose library is not installed says so.
"""

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset

from bench.driver import in_turns, tried
from bench.loaders import LOADERS
from bench.loads import as_it_is
from bench.question import Options, Question, Table, file, number
from bench.report import machine
from bench.report.machine import CHECKOUT
from bench.report.table import markdown

_PAGE_COLUMNS = {
    "value": "leaf",
    "torch, ms": "torch_ms",
    "shmloader, ms": "ours_ms",
    "speed-up": "times_torch",
    "reason": "why",
}
_PAGE_MARKS = ("<!-- measured: begin -->\n", "<!-- measured: end -->\n")
_TIMEOUT_S = 20  # torch's workers say nothing of what they cannot send
_LONGEST_S = 200.0  # of such a row, imports included; only a hang reaches it
_KEPT = 3  # leaves that a worker has made, and delivers in turns
_STRETCH = 10  # batches; the shortest counts, because a wake-up may take longer than a batch
_STRETCHES = 4
_LONGEST_LOOP_S = 1.0


@dataclass(frozen=True)
class Row:
    """One leaf: its name, and how often each loader is timed."""

    name: str
    rounds: int


def _records(options: Options) -> Iterator[dict]:
    """Yield a row for each leaf; it is right if it is what the table of leaves promises."""
    for leaf in _table().LEAVES.values():
        if options.leaf and leaf.name not in options.leaf:
            continue
        empty = {"torch_ms": None, "ours_ms": None, "times_torch": None, "bits": "-"}
        missing = leaf.missing()
        if missing:
            yield {"leaf": leaf.name, **empty, "in_slot": "-", "why": f"needs {missing}"}
            continue
        row = Row(leaf.name, options.rounds)
        # JAX's threads would stay in this process, and make later forks unsafe.
        found = tried(row, _LONGEST_S) if leaf.context else _here(row)
        if "mistake" in found:
            found = {**empty, "in_slot": "-", "why": found["mistake"], "correct": False}
        yield {"leaf": leaf.name, "why": leaf.why, **found}


def _here(row: Row) -> dict[str, Any]:
    try:
        return run(row)
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


def run(row: Row) -> dict[str, Any]:
    """Deliver a leaf by both loaders in turns."""
    warnings.simplefilter("ignore")
    leaf = _table().LEAVES[row.name]
    from tests.helpers.leaves.parts import are_same, where

    made, got = leaf.make(), {}

    def measure(name: str) -> dict[str, Any]:
        with closing(_open(LOADERS[name], leaf)) as loader:
            ms, batch = _timed(loader)
            got[name] = {"same": are_same(made, batch), "where": where(batch)}
            if name == "ours":
                got[name]["spilled"] = loader.stats().spilled
            return {"ms": ms}

    ours, theirs = _told(measure, row.rounds)
    equal = got["ours"]["same"]
    return {
        "torch_ms": theirs,
        "ours_ms": ours,
        "times_torch": theirs and theirs / ours,
        "bits": ("equal" if theirs and got["torch"]["same"] else "better")
        if equal
        else "DIFFERENT",
        "in_slot": {"all": "yes", "some": "in part", "none": "no"}[got["ours"]["where"]],
        "spilled": got["ours"]["spilled"],
        "correct": equal and (got["ours"]["where"] == "all") == leaf.in_slot,
    }


def _told(measure: Any, rounds: int) -> tuple[float, float | None]:
    """Time both loaders in turns; None: torch's cannot deliver it."""
    try:
        measure("torch")
    except Exception as error:  # any error is the row's content
        print(f"torch: {error}", file=sys.stderr)
        return min(measure("ours")["ms"] for _ in range(rounds)), None
    found = in_turns(("ours", "torch"), rounds, measure)
    ours, theirs = (min(each["ms"] for each in found[name]) for name in ("ours", "torch"))
    return ours, theirs


class Turns(Dataset[Any]):
    """A few leaves in turns, made in the worker; anew for each batch if torch would move them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.made: dict[int, Any] = {}

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Any:
        leaf = _table().LEAVES[self.name]
        if leaf.holds_tensors:
            return leaf.make()
        if index % _KEPT not in self.made:
            self.made[index % _KEPT] = leaf.make()
        return self.made[index % _KEPT]


def _open(kind: Any, leaf: Any) -> Any:
    return kind(
        Turns(leaf.name), batch_size=None, collate_fn=as_it_is, num_workers=1,
        timeout=_LONGEST_S if leaf.context else _TIMEOUT_S, multiprocessing_context=leaf.context,
    )  # fmt: skip


def _timed(loader: Any) -> tuple[float, Any]:
    """Returns the time of a batch, and one batch."""
    batches = iter(loader)
    first = next(batches)
    arrived = [time.perf_counter()]
    while len(arrived) <= _STRETCH or (
        len(arrived) <= _STRETCHES * _STRETCH and arrived[-1] - arrived[0] < _LONGEST_LOOP_S
    ):
        next(batches)
        arrived.append(time.perf_counter())
    pairs = zip(arrived, arrived[_STRETCH:], strict=False)
    return min(end - start for start, end in pairs) / _STRETCH * 1e3, first


def _table() -> Any:
    if str(CHECKOUT) not in sys.path:
        sys.path.append(str(CHECKOUT))
    from tests.helpers import leaves

    return leaves


QUESTION = Question(
    Table({**_PAGE_COLUMNS, "bits": "bits", "in the slot": "in_slot"}, _records),
    {
        "leaf": {"action": "append", "help": "a row's name; may be repeated"},
        "rounds": number(3, "in turns with torch's loader"),
        "page": file("gets the table between its marks"),
    },
    _end,
)
