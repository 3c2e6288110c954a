"""The rules of `make bench-real`: which trainings were the same, and what the rounds say."""

from __future__ import annotations

import math

import pytest

from bench.real import figures, turns
from bench.real.training import Epoch
from bench.real.trainings import Spec
from bench.real.turns import Run


def epoch(wall_s=1.0, losses=(0.5, 0.25), **found):
    times = {"wait_s": 0.0, "trainer_cpu_s": 0.0, "worker_cpu_s": 0.0}
    faults = {"trainer_minor_faults": 0.0, "worker_minor_faults": 0.0}
    return Epoch(wall_s, losses=list(losses), **{**times, **faults, **found})


def runs(theirs, ours, served=None):
    """Make the runs of both loaders, of which the first epochs are the warm-up."""
    theirs, ours = (Run(each[0], 100.0, each[1:]) for each in (theirs, ours))
    ours.stats = {"batches": len(ours.losses()) if served is None else served}
    return {"torch": theirs, "ours": ours}


def test_same_losses_are_right():
    """A training whose every loss is torch's is right."""
    assert figures.mistake(runs([epoch(), epoch()], [epoch(), epoch()])) is None


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ((0.5, math.nextafter(0.25, 1)), "step 3: the loss is 0.25000000000000006"),
        ((0.5, math.nan), "step 3: the loss is nan"),
        ((0.5,), "3 steps instead of 4"),
    ],
    ids=["a bit", "nan", "a step"],
)
def test_other_losses_are_wrong(ours, said):
    """A loss that differs in one bit, or is missing, is a mistake that names the step."""
    mistake = figures.mistake(runs([epoch(), epoch()], [epoch(), epoch(losses=ours)]))

    assert mistake.startswith(said)


def test_nan_on_both_sides_is_wrong():
    """Losses that are not numbers show nothing, even if both loaders have them."""
    broken = epoch(losses=(math.nan,))

    assert figures.mistake(runs([broken, broken], [broken, broken])) is not None


def test_warm_up_counts():
    """A loss of the epoch that is not timed must be the same too."""
    mistake = figures.mistake(runs([epoch(), epoch()], [epoch(losses=(1.0, 0.25)), epoch()]))

    assert mistake.startswith("step 0:")


def test_batches_must_be_ours():
    """Equal losses do not count if torch's own loader delivered a batch."""
    same = [epoch(), epoch()]

    assert figures.mistake(runs(same, same, served=3)) == "3 of 4 batches were ours"


def test_figures_are_medians_per_step():
    """Times are divided by the steps, waiting by the time; the median round is shown."""
    rounds = [
        epoch(2.0, wait_s=1.0, trainer_cpu_s=0.2, worker_cpu_s=0.4, worker_minor_faults=8.0),
        epoch(4.0, wait_s=1.0, trainer_cpu_s=0.4, worker_cpu_s=0.4, worker_minor_faults=6.0),
        epoch(8.0, wait_s=1.0, trainer_cpu_s=0.6, worker_cpu_s=0.4, worker_minor_faults=0.0),
    ]
    theirs, _ = figures.records("name", "title", runs([epoch(), *rounds], [epoch(), *rounds]))
    wanted = {
        "ms": 2000.0,
        "rounds_ms": [1000.0, 2000.0, 4000.0],
        "wait": 0.25,
        "trainer_cpu_ms": pytest.approx(200),
        "all_cpu_ms": pytest.approx(400),
        "worker_faults": 3.0,
    }

    assert wanted == {name: theirs[name] for name in wanted}


def test_ratios_are_taken_within_rounds():
    """A round that is slow for both loaders changes no ratio."""
    theirs = [epoch(), epoch(3.0), epoch(30.0), epoch(9.0)]
    ours = [epoch(), epoch(1.0), epoch(15.0), epoch(3.0)]
    records = figures.records("name", "title", runs(theirs, ours))

    assert [1.0, 3.0] == [record["times_torch"] for record in records]


def test_missing_packages_are_named():
    """A training that cannot run says which distributions are missing, and only these."""
    spec = Spec("title", 1, {"torch": "torch", "no_such_module": "no-such-thing"})

    assert "needs no-such-thing" == spec.why_not()


@pytest.mark.thorough
def test_two_processes_train_in_turns(tmp_path):
    """A training goes through in both processes, with the same losses and batches that are ours."""
    found = turns.alternate("text", 3, 2, tmp_path)

    assert figures.mistake(found) is None
    assert [3, 3] == [len(run.epochs[-1].losses) for run in found.values()]
    assert ([], 9) == (list(found["torch"].stats), found["ours"].stats["batches"])


@pytest.mark.thorough
def test_failure_is_told(tmp_path):
    """A training that cannot be made fails with the error of its process, which is gone then."""
    with pytest.raises(turns.Failed, match=r"(?s)torch: .*no_such_training"):
        turns.alternate("no_such_training", 3, 1, tmp_path)
