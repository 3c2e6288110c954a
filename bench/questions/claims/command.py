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

from collections.abc import Iterator
from functools import partial

from bench.driver import in_turns, middle, missing, mistakes, ratio, runnable, tried
from bench.measure import measure
from bench.question import Options, Question, number
from bench.questions.claims import arena, latency, objects, tails, threads
from bench.questions.claims.claim import TORCH, Claim

CLAIMS: dict[str, Claim] = {
    name: claim
    for module in (arena, objects, latency, tails, threads)
    for name, claim in module.CLAIMS.items()
}
_EPOCHS = 3
_LONGEST_S = 400


def run(claim: str, way: str) -> dict:
    """Read a load, in one way."""
    load = CLAIMS[claim]
    found = measure(load.ways[way], load, _EPOCHS, way not in load.any_order)
    return {"rate": 1e3 / found["ms_per_batch"], **found}


def _records(options: Options) -> Iterator[dict]:
    """Yield a row for each claim and way."""
    for name, claim in CLAIMS.items():
        if not any(part in name for part in options.claim or [""]):
            continue
        rows = {way: partial(run, name, way) for way in claim.ways}
        needs = {way: claim.needs.get(way, "torch") for way in rows}
        ways = runnable(rows, lambda way, needs=needs: missing(needs[way]), "none runs here")
        found = in_turns(ways, options.rounds, lambda way, rows=rows: tried(rows[way], _LONGEST_S))
        wrong = mistakes(found)
        for way, runs in found.items():
            rate, megabytes = middle(runs, "rate") or 0.0, middle(runs, "batch_mb") or 0.0
            yield {
                "claim": name,
                "way": way,
                "batches/s": rate,
                "MB/s": rate * megabytes if claim.is_moved else None,
                "trainer's CPU, ms a batch": middle(runs, "trainer_cpu_ms"),
                "times torch": ratio(runs, found[TORCH], "rate"),
                "mistakes": {way: wrong[way]} if way in wrong else {},
            }


QUESTION = Question(
    _records,
    {
        "claim": {"action": "append", "metavar": "PART", "help": "of a claim's name"},
        "rounds": number(3),
    },
)
