"""tune(): options for loops that were run, for loops that are made up, and for a loader itself."""

import functools
import json
import time
import warnings
from pathlib import Path

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

import shmloader
from shmloader.advice.case import Case
from shmloader.advice.model import play
from shmloader.tuning import TooFewBatches, _Search, tune
from tests.helpers.datasets import Computed

from .loops import loop, one_in_twelve

# Loops that were run: their batches' times with one setting, and their rates with others.
RECORDED = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "recorded").glob("*.json"))
}
MEASURED = [
    (name, workers, depth, rate)
    for name, record in RECORDED.items()
    for workers, depth, rate in record["rates"]
]


@pytest.mark.parametrize(("name", "workers", "depth", "rate"), MEASURED)
def test_model_predicts_what_was_measured(name, workers, depth, rate):
    """From the times of one run the model tells the rates of all others within a tenth."""
    record = RECORDED[name]
    count = max(len(record["making_s"]), 40 * workers)
    played = play(record["making_s"], record["step_s"], workers, depth, batches=count)

    assert rate == pytest.approx(count / played.total_s, rel=0.1)


def searching(monkeypatch, made, workers=2, step=None, **options):
    """Make a search whose runs are loops that are made up."""
    loader = shmloader.DataLoader([0], num_workers=workers, **options)
    search = _Search(loader, step, 60.0, lambda line: None)
    runs = []

    def run(*key, as_it_is=False):
        runs.append(key)
        return Case(*made(*key))

    monkeypatch.setattr(search, "_run", run)
    return search, runs


def recorded(name):
    """Make a function that plays a recorded loop with other options."""
    record = RECORDED[name]
    making = numpy.resize(record["making_s"], 200)
    step = float(numpy.mean(record["step_s"]))
    return lambda workers, depth, assignment: loop(
        making,
        0.0,
        step,
        workers,
        prefetch_factor=depth,
        assignment=assignment,
        cores=record["cores"],
    )


@pytest.mark.parametrize(
    ("name", "workers"), [("records", (8, 9)), ("heavy_tail", (2, 3)), ("uneven", (5, 6))]
)
def test_recorded_loops_are_tuned(monkeypatch, name, workers):
    """W1 needs 8 workers; the heavy tail needs depth and not workers; no run is made twice."""
    search, runs = searching(monkeypatch, recorded(name))
    found = search.tuned()

    assert found.options.get("num_workers", 2) in workers
    assert len(runs) == len(set(runs)) <= 6
    assert found.wait_share < 0.06
    assert (2, 2, "cycle") == runs[0]
    assert (2, 2) == (found.before.num_workers, found.before.prefetch_factor)
    if name == "heavy_tail":
        assert found.options["prefetch_factor"] > 2


@pytest.mark.parametrize(("workers", "options"), [(2, {"num_workers": 1}), (1, {})])
def test_a_good_loader_stays_as_it_is(monkeypatch, workers, options):
    """Where nothing is gained but a process the smallest setting is named, and no more options."""
    search, runs = searching(
        monkeypatch,
        lambda workers, depth, assignment: loop(
            0.001, 0.0, 0.05, workers, prefetch_factor=depth, assignment=assignment
        ),
        workers,
    )
    found = search.tuned()

    assert options == found.options
    assert len(runs) <= 2
    assert (not options) == str(found).startswith("no option to change: ")


@pytest.mark.thorough
def test_a_loader_that_finds_its_workers_is_told_the_rest():
    """It is run with fixed numbers, and no number of workers is named; it is "auto" again then."""
    loader = shmloader.DataLoader(range(4000), 4, num_workers="auto", max_workers=3)
    found = tune(lambda: loader, 0.001, seconds=2)

    assert "num_workers" not in found.options
    assert 2 == found.before.num_workers
    assert (3, 3) == (loader.num_workers, loader.max_workers)


@pytest.mark.parametrize(("may", "chosen"), [(True, "dynamic"), (False, None)])
def test_dynamic_assignment_is_found(monkeypatch, may, chosen):
    """Slow batches that would queue up at one worker are met by assignment, not by more depth."""

    def made(workers, depth, assignment):
        options = {
            "prefetch_factor": depth,
            "assignment": assignment,
            "may_be_dynamic": may,
        }
        return loop(one_in_twelve, 0.0, 0.008, workers, **options)

    search, runs = searching(monkeypatch, made, prefetch_factor=4)
    found = search.tuned()

    assert chosen == found.options.get("assignment")
    assert found.wait_share < 0.12
    assert may == any(run[2] == "dynamic" for run in runs)
    assert ('assignment="dynamic"' in str(found).splitlines()[0]) == may
    if may:
        assert "prefetch_factor" not in found.options


NUMBERS = Computed(400, functools.partial(torch.full, (8,)))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [DataLoader, shmloader.DataLoader])
def test_a_loader_is_run(kind):
    """A loader is run with a step, by its own dataset, and is afterwards what it was."""
    loader = kind(NUMBERS, batch_size=4, num_workers=1)
    seen, lines = [], []
    found = tune(
        lambda: loader, lambda batch: seen.append(len(batch)), seconds=1, tell=lines.append
    )

    # By default there are slots and bytes enough for any number of workers.
    assert found.options.keys() <= {"num_workers", "prefetch_factor", "assignment"}
    assert found.batches_per_s > 0
    assert len(seen) > 32
    assert "running 1 worker, prefetch_factor=2" == lines[0]
    assert (1, 2) == (loader.num_workers, loader.prefetch_factor)
    assert "cycle" == getattr(loader, "assignment", "cycle")
    assert 100 == sum(1 for _ in loader)


@pytest.mark.thorough
def test_a_loader_without_workers_is_tuned():
    """num_workers=0 is tuned from one worker on."""
    loader = DataLoader(NUMBERS, batch_size=4)
    found = tune(lambda: loader, seconds=1)

    assert found.options["num_workers"] >= 1
    assert (0, None) == (loader.num_workers, loader.prefetch_factor)


def test_a_run_that_is_too_short_ends_the_search(monkeypatch):
    """What was measured before it is the answer, and what was left out is said."""
    search, runs = searching(monkeypatch, recorded("records"))
    measured, lines = search._run, []

    def run(*key, as_it_is=False):
        if runs:
            raise TooFewBatches("3 batches came")
        return measured(*key)

    monkeypatch.setattr(search, "_run", run)
    monkeypatch.setattr(search, "_tell", lines.append)
    found = search.tuned()

    assert {} == found.options
    assert ["this setting is skipped: 3 batches came"] == lines


@pytest.mark.thorough
def test_short_epochs_are_measured_as_a_whole():
    """No rate is said that an epoch of ten batches cannot have, and no worker without a batch."""
    loader = DataLoader(Computed(40, slow), batch_size=4, num_workers=1, persistent_workers=True)
    found = tune(lambda: loader, seconds=1)

    assert len(found.curve) > 1
    assert max(run.num_workers for run in found.curve) <= 10
    # Each of ten batches takes 20 ms, and all may come at once.
    assert max(run.batches_per_s for run in found.curve) <= 10 / 0.02


@pytest.mark.thorough
def test_rates_of_short_epochs_are_said_to_include_their_start():
    """The cause leaves the start out, so without this line the two would contradict each other."""
    loader = DataLoader(Computed(40, slow), batch_size=4, num_workers=1, prefetch_factor=4)
    found = tune(lambda: loader, seconds=3)

    assert any("rates and waits here include their starts" in line for line in found.reasons)


def slow(index):
    """A row that takes a while, as those that wait for a network."""
    time.sleep(0.005)
    return torch.full((8,), index)


@pytest.mark.thorough
def test_fetching_threads_are_found():
    """Of a loader that has threads, tune() finds how many; one without is not given any."""
    options = {"batch_size": 4, "num_workers": 1, "prefetch_factor": 4}
    loader = shmloader.DataLoader(Computed(4000, slow), **options, fetch_threads=2)
    found = tune(lambda: loader, seconds=3)

    assert found.options["fetch_threads"] in (8, 32)
    assert 2 == loader.fetch_threads
    assert [True] == ["batches/s" in line for line in found.reasons if "fetch_threads: " in line]


@pytest.mark.thorough
def test_other_runs_have_no_limits_of_slots_and_bytes():
    """Slots and bytes that were chosen for one worker do not hamper eight; they are put back."""
    loader = shmloader.DataLoader(NUMBERS, batch_size=4, num_workers=1, slots=3, ring_bytes=1 << 20)
    chosen = []

    def step(batch):
        chosen.append((loader.slots, loader.ring_bytes))
        time.sleep(0.001)

    with warnings.catch_warnings(action="ignore"):
        found = tune(lambda: loader, step, seconds=1)
    first, others = chosen[0], [each for each in chosen if each != chosen[0]]

    assert (3, 1 << 20) == first == (loader.slots, loader.ring_bytes)
    assert {(None, None)} == set(others)
    assert found.options["slots"] > 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"seconds": float("nan")}, "seconds is nan: it must be above 0"),
        ({"seconds": 0}, "seconds is 0"),
        ({"step": float("inf")}, "step is inf seconds: it must be 0 or more"),
        ({"step": -1}, "step is -1 seconds"),
    ],
)
def test_times_are_finite(options, text):
    """A budget or a step that would never end is refused before anything is run."""
    with pytest.raises(ValueError, match=text):
        tune(lambda: pytest.fail("the loader was made"), **options)


@pytest.mark.thorough
def test_what_cannot_be_tuned_is_refused():
    """An object that is no loader, and epochs that are too short, are errors with a way out."""
    with pytest.raises(TypeError, match="returned list, not a torch"):
        tune(lambda: [1])
    for options in ({"batch_size": 100}, {"batch_size": 500, "drop_last": True}):
        with pytest.raises(ValueError, match="too few to measure: pass more seconds, or a loader"):
            tune(lambda options=options: DataLoader(NUMBERS, **options), seconds=0.2)
