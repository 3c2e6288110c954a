"""
The steps by which a replacement takes over from the dead worker, where batches do not show them.

What batches show of them is in test_dataset_states, test_healing and test_healing_iterable.
"""

import random
from types import SimpleNamespace

from shmloader.core import Past
from shmloader.worker import snapshot
from shmloader.worker.replacement import ReplacementWorker
from shmloader.worker.snapshot import Position


class Steps(ReplacementWorker):
    """A replacement for an iterable dataset that notes its steps instead of fetching."""

    _is_iterable = True

    def __init__(self, progress, dataset):
        options = {"is_seeded": False, "publishes": False}
        super().__init__(SimpleNamespace(worker_id=0, dataset=dataset, **options), progress)
        self.steps = []
        self.seeds = []
        self._desk = SimpleNamespace(show_replay=lambda *done: None)
        self._fetcher = SimpleNamespace(fetch=self._fetch)
        if isinstance(dataset, Restored):
            dataset.steps = self.steps

    def _run_init_function(self):
        self.steps.append("init")

    def _share_seed(self, seed):
        self.seeds.append(seed)

    def _begin_epoch(self):
        self.steps.append(f"begin {random.random():.3f}")

    def _fetch(self, index):
        self.steps.append(f"fetch {index}")


class Restored:
    """A dataset that notes when its state is restored."""

    def load_state_dict(self, state):
        self.steps.append(f"dataset at {state}")


def taken(seed, **position):
    """Returns a snapshot whose generators have that seed, and the first two draws after it."""
    random.seed(seed)
    state = snapshot.take(Position(**position))
    return state, [f"{random.random():.3f}" for _ in range(2)]


def initialised(progress, dataset=()):
    """Returns a replacement after its first steps."""
    worker = Steps(progress, dataset)
    worker._initialise()
    return worker


def test_the_last_fetch_of_an_epoch_that_was_broken_off_is_repeated():
    """A generator must have begun there, from the answer before, with the random states of then."""
    before, _ = taken(1, has_begun=True, attempts=2, index=0, dataset={"at": 2})
    began, at_begin = taken(2, has_begun=True, attempts=3, index=0, dataset={"at": 3})
    progress = Past(begun=began, seeds=(7,), before=before)
    worker = initialised(progress, Restored())

    assert ["init", "dataset at {'at': 2}"] == worker.steps[:2]
    assert ["fetch 0", f"begin {at_begin[0]}"] == worker.steps[3:]


def test_what_has_no_state_is_only_begun():
    """Nothing is fetched again of an epoch that is over."""
    began, at_begin = taken(1, has_begun=True, attempts=3, index=0)
    worker = initialised(Past(begun=began, seeds=(None,)))

    assert ["init", f"begin {at_begin[0]}"] == worker.steps


def test_a_state_that_was_not_told_is_fetched_again_from_the_epochs_beginning():
    """That beginning is where the last answer before it was, if the dataset told a state there."""
    began, at_begin = taken(1, has_begun=True, attempts=3, dataset={"at": 3})
    latest, _ = taken(2, has_begun=True, attempts=1, index=0, lacks_state=True)
    progress = Past(begun=began, seeds=(None,), latest=latest)
    worker = initialised(progress, Restored())

    assert ["init", "dataset at {'at': 3}"] == worker.steps[:2]
    assert [f"begin {at_begin[0]}", "fetch 0"] == worker.steps[3:]


def test_a_beginning_that_was_broken_off_is_repeated():
    """A worker that was told twice to begin an epoch, and answered nothing, has begun two."""
    worker = initialised(Past(seeds=(7, 8)))

    assert (["init", "begin", "begin", "begin"], [7, 8]) == (
        [step.split()[0] for step in worker.steps],
        worker.seeds,
    )
