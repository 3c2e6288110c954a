"""
What others publish of their loaders, played again here: theirs, torch's and ours in turns.

    python -m bench claims
    python -m bench claims --claim arena --rounds 5     those whose names have that in them

The first epoch compares every batch whole, in torch's order where one is promised; three more are
timed, in which a strided sample of each batch is read and compared afterwards; without an order the
batches are counted. The CPU is that of the trainer's process. A claim's own words are in its
module's docstring. A way whose package is not installed is left out: `make .venv/peers` installs
them, and dataloader-rs needs Python 3.13.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.batches import difference, payload_bytes, touch
from bench.driver import in_turns, middle, mistakes, ratio, runnable, tried
from bench.question import Options, Question, number
from bench.questions.claims import arena, latency, objects, tails, threads
from bench.questions.claims.claim import TORCH, Claim, missing

CLAIMS: dict[str, Claim] = {
    **arena.CLAIMS,
    **objects.CLAIMS,
    **latency.CLAIMS,
    **tails.CLAIMS,
    **threads.CLAIMS,
}
_EPOCHS = 3
_LONGEST_S = 400


@dataclass(frozen=True)
class Row:
    """What is run: whose claim, which way."""

    claim: str
    way: str


def run(row: Row) -> dict:
    """Read a load, in one way."""
    claim = CLAIMS[row.claim]
    with closing(claim.ways[row.way]()) as loader:
        mistake = _compared(claim, row.way, loader)
        found = [_epoch(loader) for _ in range(_EPOCHS)]
    wanted = [touch(claim.expected(number)) for number in range(claim.batches)]
    for seen, _, _ in found:
        is_right = len(seen) == len(wanted) if row.way in claim.any_order else seen == wanted
        mistake = mistake or (None if is_right else "a later epoch differs")
    return {
        "rate": claim.batches / median(seconds for _, seconds, _ in found),
        "cpu_ms": 1e3 * median(cpu_s for _, _, cpu_s in found) / claim.batches,
        "mistake": mistake,
    }


def _compared(claim: Claim, way: str, loader: Any) -> str | None:
    """Read an epoch and compare all of it. Returns what is wrong, or None."""
    if way in claim.any_order:
        wanted = [claim.expected(number) for number in range(claim.batches)]
        is_right = claim.sorted_by(list(loader)) == claim.sorted_by(wanted)
        return None if is_right else "samples are missing, or come twice"
    count, mistake = 0, None
    for batch in loader:
        mistake = mistake or difference(claim.expected(count), batch)
        count += 1
        del batch
    return mistake or (None if count == claim.batches else f"{count} of {claim.batches} came")


def _epoch(loader: Any) -> tuple[list, float, float]:
    """Read an epoch. Returns what was seen of each batch, the seconds, and those of the CPU."""
    seen = []
    began, cpu_began = time.perf_counter(), time.process_time()
    for batch in loader:
        seen.append(touch(batch))
        del batch
    return seen, time.perf_counter() - began, time.process_time() - cpu_began


def _records(options: Options) -> Iterator[dict]:
    """Yield a row for each claim and way."""
    wanted = [name for name in CLAIMS if any(part in name for part in options.claim or [""])]
    for name in wanted:
        claim = CLAIMS[name]
        ways = runnable(claim.ways, lambda way, claim=claim: missing(claim, way), "none runs here")
        found = in_turns(
            ways, options.rounds, lambda way, name=name: tried(Row(name, way), _LONGEST_S)
        )
        megabytes = payload_bytes(claim.expected(0)) / 1e6
        wrong = mistakes(found)
        for way, runs in found.items():
            rate = middle(runs, "rate") or 0.0
            yield {
                "claim": name,
                "way": way,
                "batches/s": rate,
                "MB/s": rate * megabytes if claim.is_moved else None,
                "trainer's CPU, ms a batch": middle(runs, "cpu_ms"),
                "times torch": ratio(runs, found[TORCH], "rate"),
                "correct": way not in wrong,
                "mistakes": {way: wrong[way]} if way in wrong else {},
            }


QUESTION = Question(
    _records,
    {
        "claim": {"action": "append", "metavar": "PART", "help": "of a claim's name"},
        "rounds": number(3),
    },
)
