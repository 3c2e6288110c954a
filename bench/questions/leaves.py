"""
What may be in a batch: torch's time for each kind and ours, if the bits are equal, where they lie.

    python -m bench leaves
    python -m bench leaves --part leaves --leaf recarray --rounds 5
    python -m bench leaves --part leaves --page docs/leaves.md
    python -m bench leaves --part batches

Both loaders take turns. The part leaves has the kinds of tests/helpers/leaves: one worker delivers
the same few again and again, but makes tensors anew, because to send one again would be free with
torch; the shortest stretch of some batches counts. Pointers are looked up in the trainer: "in the
slot" means all memory of the leaf. A row whose library is not installed says so.

The part batches has whole batches of small things or of views, by two workers; the shortest epoch
counts, behind one of which every batch is compared. Ours may take 1.5 times torch's time, 1.2 times
where torch pickles all; a row above fails, unless it says why.
"""

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from bench.batches import digest
from bench.driver import in_turns, tried
from bench.loaders import LOADERS, opened
from bench.loads import Made, as_it_is
from bench.loads.wholes import KINDS
from bench.question import Options, Question, Table, file, number
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
_TIMEOUT_S = 20  # torch's workers say nothing of what they cannot send
_LONGEST_S = 200.0  # of such a row, imports included; only a hang reaches it
_SLACK_MS = 0.2  # below this a ratio says nothing: a wake-up more or less
_KEPT = 3  # leaves that a worker has made, and delivers in turns
_STRETCH = 10  # batches; the shortest counts, because a wake-up may take longer than a batch
_STRETCHES = 4
_LONGEST_LOOP_S = 1.0


def _records(options: Options) -> Iterator[dict]:
    """Yield a row for each leaf; it is right if it is what the table of leaves promises."""
    for leaf in LEAVES.values():
        if not any(leaf.name.startswith(part) for part in options.leaf or [leaf.name]):
            continue
        missing, row = leaf.missing(), partial(run, leaf.name, options.rounds)
        if missing:
            found = {"why": f"needs {missing}"}
        else:
            # JAX's threads would stay in this process, and make later forks unsafe.
            found = tried(row, _LONGEST_S) if leaf.context else _here(row)
        if "mistake" in found:
            found = {"why": found["mistake"], "correct": False}
        yield {"leaf": leaf.name, "why": leaf.why, **_NO_FIGURES, **found}


def _here(row: partial) -> dict[str, Any]:
    try:
        return row()
    except Exception as error:  # any error is the row's content
        return {"mistake": str(error).partition("\n")[0]}


def _end(options: Options, found: dict[str, list[dict]]) -> None:
    """Write the page, if one is named."""
    if not options.page or "leaves" not in found:
        return
    begin, finish = _PAGE_MARKS
    before, _, rest = options.page.read_text().partition(begin)
    table = markdown(_PAGE_COLUMNS, found["leaves"])
    about = f"{machine.sentence(machine.about())}.\n"
    options.page.write_text(f"{before}{begin}{table}\n{about}{finish}{rest.partition(finish)[2]}")


def run(name: str, rounds: int) -> dict[str, Any]:
    """Deliver a leaf by both loaders in turns, each so often."""
    leaf = LEAVES[name]
    made = leaf.make()

    def play(loaded: Any) -> tuple[float, Any]:
        ms, batch = _timed(loaded)
        return ms, (are_same(made, batch), where(batch))

    ms, seen = _measured(partial(_opened, leaf=leaf), rounds, play)
    ours, theirs = ms["ours"], ms.get("torch")
    equal, lies = seen["ours"]
    return {
        "torch_ms": theirs,
        "ours_ms": ours,
        "times_torch": theirs and theirs / ours,
        "bits": _bits(equal, bool(theirs) and seen["torch"][0]),
        "in_slot": {"all": "yes", "some": "in part", "none": "no"}[lies],
        "correct": equal and (lies == "all") == leaf.in_slot,
    }


def _batches(options: Options) -> Iterator[dict]:
    """Yield a row for each kind of batch; it is right if ours is not much worse than torch's."""
    for name, kind in KINDS.items():
        if not any(name.startswith(part) for part in options.leaf or [name]):
            continue
        load = kind.load()
        right = list(map(digest, DataLoader(load.dataset, **load.arguments)))
        given = {**load.arguments, "num_workers": 2, "persistent_workers": True}
        ms, seen = _measured(
            lambda loader, load=load, given=given: opened(loader, load.dataset, **given),
            options.rounds,
            _epochs,
        )
        ours, theirs = ms["ours"], ms["torch"]
        is_near = ours <= max(kind.most * theirs, theirs + _SLACK_MS)
        yield {
            "batches of": name,
            "torch, ms": theirs,
            "shmloader, ms": ours,
            "speed-up": theirs / ours,
            "bits": _bits(seen["ours"] == right, seen["torch"] == right),
            "why": kind.why if not is_near else "",
            "correct": seen["ours"] == right and (is_near or bool(kind.why)),
        }


def _bits(ours: bool, torchs: bool) -> str:
    """Word whose bits are right."""
    return ("equal" if torchs else "better") if ours else "DIFFERENT"


def _measured(
    open_loader: Callable[[str], Any], rounds: int, play: Callable[[Any], tuple[float, Any]]
) -> tuple[dict[str, float], dict[str, Any]]:
    """
    Deliver batches by both loaders in turns, or by ours alone where torch's fails.

    Returns:
        The shortest time of a batch by each loader, and what else its loop says.
    """
    warnings.simplefilter("ignore")
    seen = {}

    def measure(loader: str) -> dict[str, float]:
        with open_loader(loader) as loaded:
            ms, seen[loader] = play(loaded)
        return {"ms": ms}

    try:
        measure("torch")
        names = [*LOADERS]
    except Exception as error:  # any error is the row's content
        print(f"torch: {error}", file=sys.stderr)
        names = ["ours"]
    found = in_turns(names, rounds, measure)
    return {name: min(run["ms"] for run in runs) for name, runs in found.items()}, seen


def _leaf_of(name: str, made: dict[int, Any], index: int) -> Any:
    """Give one of a few leaves in turns, made in the worker; anew if torch would move them."""
    leaf, place = LEAVES[name], index % _KEPT
    if leaf.holds_tensors:
        return leaf.make()
    if place not in made:
        made[place] = leaf.make()
    return made[place]


def _opened(loader: str, leaf: Any) -> Any:
    return opened(
        loader, Made(1_000_000, partial(_leaf_of, leaf.name, {})), batch_size=None,
        collate_fn=as_it_is, num_workers=1, multiprocessing_context=leaf.context,
        timeout=_LONGEST_S if leaf.context else _TIMEOUT_S,
    )  # fmt: skip


def _epochs(loader: Any) -> tuple[float, list[int]]:
    """Returns the time of a batch in the shorter of two epochs, and digests of the one before."""
    seen, took_s = list(map(digest, loader)), []
    for _ in range(2):
        begin = time.perf_counter()
        for _ in loader:
            pass
        took_s.append(time.perf_counter() - begin)
    return min(took_s) / len(seen) * 1e3, seen


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


QUESTION = Question(
    {
        "leaves": Table({**_PAGE_COLUMNS, "bits": "bits", "in the slot": "in_slot"}, _records),
        "batches": _batches,
    },
    {
        "leaf": {"action": "append", "help": "a row's name, or how some begin; may be repeated"},
        "rounds": number(3, "in turns with torch's loader"),
        "page": file("gets the table between its marks"),
    },
    _end,
)
