"""The rules of `make bench-real`: which trainings were the same, and what the rounds say."""

from __future__ import annotations

import math

import pytest

from bench.real import command
from bench.real.trainings import Spec


def run(losses=(0.5, 0.25, 0.5, 0.25), ms=1.0, served=4, **found):
    """What a process found: the losses of both epochs, and figures of the second."""
    figures = ("wait", "trainer_cpu_ms", "worker_cpu_ms", "peak_mb")
    faults = ("trainer_minor_faults", "worker_minor_faults")
    plain = dict.fromkeys((*figures, *faults), 0.0)
    return {**plain, "losses": list(losses), "ms": ms, "stats": {"batches": served}, **found}


NAN = run([math.nan] * 4)
FOUND = {
    "the same": (run(), run(), None),
    "a bit": (
        run(),
        run((0.5, 0.25, 0.5, math.nextafter(0.25, 1))),
        "step 3: the loss is 0.25000000000000006",
    ),
    "nan": (run(), run((0.5, 0.25, 0.5, math.nan)), "step 3: the loss is nan"),
    "a step": (run(), run((0.5, 0.25, 0.5)), "3 steps instead of 4"),
    "the epoch that is not timed": (run(), run((1.0, 0.25, 0.5, 0.25)), "step 0: the loss is 1.0"),
    "nan on both sides": (NAN, NAN, ""),
    "a batch of torch's": (run(), run(served=3), "3 of 4 batches were ours"),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_wrong_is_said(name):
    """Losses must be torch's in each bit, numbers, and of batches that are ours."""
    theirs, ours, said = FOUND[name]
    mistake = command.mistake(theirs, ours)

    assert mistake is None if said is None else mistake.startswith(said)


def test_every_round_counts():
    """A mistake in one round makes both rows wrong."""
    found = {"torch": [run(), run()], "ours": [run(), run(served=3)]}

    assert [False, False] == [each["correct"] for each in command.compared("name", found)]


def test_figures_are_medians():
    """The median round is shown, of each figure for itself; CPU of all is summed in each round."""
    rounds = [
        run(ms=1000.0, wait=0.5, trainer_cpu_ms=100, worker_cpu_ms=200, worker_minor_faults=4.0),
        run(ms=2000.0, wait=0.25, trainer_cpu_ms=200, worker_cpu_ms=10, worker_minor_faults=3.0),
        run(ms=4000.0, wait=0.125, trainer_cpu_ms=300, worker_cpu_ms=200, worker_minor_faults=0.0),
    ]
    theirs, _ = command.compared("name", {"torch": rounds, "ours": rounds})
    wanted = {
        "ms": 2000.0,
        "range": "1000 to 4000",
        "waiting": "25 %",
        "trainer_cpu_ms": 200,
        "all_cpu_ms": 300,
        "worker_minor_faults": 3.0,
    }

    assert wanted == {name: theirs[name] for name in wanted}


def test_ratios_are_taken_within_rounds():
    """A round that is slow for both loaders changes no ratio."""
    found = {
        "torch": [run(ms=ms) for ms in (3.0, 30.0, 9.0)],
        "ours": [run(ms=ms) for ms in (1.0, 15.0, 3.0)],
    }

    assert [1.0, 3.0] == [each["times_torch"] for each in command.compared("name", found)]


def test_missing_packages_are_named():
    """A training that cannot run says which distributions are missing, and only these."""
    spec = Spec("title", 1, {"torch": "torch", "no_such_module": "no-such-thing"})

    assert "needs no-such-thing" == spec.why_not()
