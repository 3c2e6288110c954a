"""A resumed run has the undisturbed one's batches, bit for bit, wherever it was interrupted."""

import pytest

from tests.resume.interrupted import (
    BATCHES,
    Drawing,
    Run,
    WithRng,
    resumed,
    resumed_often,
    undisturbed,
)

# With seed_by="batch": how a loader is made, with which the same batches come.
WAYS = {
    "no workers": {},
    "one": {"num_workers": 1},
    "two": {"num_workers": 2},
    "three, a shallow lookahead": {"num_workers": 3, "prefetch_factor": 1},
    "two, a deep one": {"num_workers": 2, "prefetch_factor": 9},
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "forkserver": {"num_workers": 1, "multiprocessing_context": "forkserver"},
    "dynamic": {"num_workers": 3, "assignment": "dynamic"},
    "few slots": {"num_workers": 2, "slots": 2},
    "restarts": {"num_workers": 2, "restarts": 1},
    "resumable": {"num_workers": 2, "resumable": True},
}
SLOW = ("spawn", "forkserver")  # to start
POSITIONS = (0, 1, 4, BATCHES - 1, BATCHES, BATCHES + 1, 2 * BATCHES - 1)
# Where an epoch is cut is the trainer's matter, which these ways show for the others.
EVERYWHERE = ("no workers", "two", "dynamic", "persistent")


def both(expected, run, again, positions=POSITIONS, epochs=2):
    """Compare resumed runs with the undisturbed one."""
    for position in positions:
        assert expected == resumed(run, again, position, epochs), position


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_any_way_goes_on_with_itself_and_with_another(way):
    """With seed_by="batch" neither the workers that were nor those that are change a bit."""
    run, names = Run(Drawing, WAYS[way]), list(WAYS)
    other = Run(Drawing, WAYS[names[names.index(way) - 1]])
    if way in SLOW:
        both(undisturbed(Run(Drawing, {}), 1), run, run, (4,), 1)
        return
    expected = undisturbed(Run(Drawing, {}))
    both(expected, run, run, POSITIONS if way in EVERYWHERE else (1, BATCHES - 1, BATCHES + 1))
    both(expected, run, other, (4, BATCHES + 1))


@pytest.mark.core(every=3)
@pytest.mark.parametrize("every", [3, 1, BATCHES])
def test_a_run_that_is_interrupted_again_and_again(every):
    """Each run saves what the next one needs, whichever it went on from itself."""
    runs = [Run(Drawing, WAYS[way]) for way in ("no workers", "two", "no workers", "dynamic")]

    assert undisturbed(Run(Drawing, {})) == resumed_often(runs, every)


# With seed_by="worker" the same number of workers is needed, whose draws then go on.
SNAPSHOTS = {
    "two": {"num_workers": 2},
    "persistent": {"num_workers": 3, "persistent_workers": True},
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "restarts": {"num_workers": 2, "restarts": 1, "persistent_workers": True},
    "persistent by batch": {"num_workers": 2, "persistent_workers": True, "seed_by": "batch"},
}


@pytest.mark.thorough
@pytest.mark.parametrize("way", SNAPSHOTS)
def test_workers_draws_go_on(way):
    """resumable=True has each worker go on with its own draws, also over the epoch's edge."""
    run = Run(Drawing, {"seed_by": "worker", "resumable": True, **SNAPSHOTS[way]})
    if way in SLOW:
        both(undisturbed(run, 1), run, run, (4,), 1)
        return
    deeper = Run(Drawing, {**run.options, "prefetch_factor": 5})
    positions = POSITIONS if way in EVERYWHERE else (1, BATCHES, BATCHES + 1)
    both(undisturbed(run, 3), run, deeper, (*positions, 2 * BATCHES + 1), epochs=3)


@pytest.mark.thorough
def test_draws_of_rng_go_on():
    """So do those of rng(), under threads that fetch."""
    expected = undisturbed(Run(WithRng, {}))
    run = Run(WithRng, {"num_workers": 2, "fetch_threads": 2})
    both(expected, run, run, (3, BATCHES + 1))
