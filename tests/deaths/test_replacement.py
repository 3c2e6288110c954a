"""The steps by which a replacement takes over from the dead worker, one by one."""

import random
from types import SimpleNamespace

import pytest

from shmloader.core import Past
from shmloader.core.past import LOST
from shmloader.worker import snapshot
from shmloader.worker.replacement import ReplacementWorker
from shmloader.worker.snapshot import Position


class Steps(ReplacementWorker):
    """
    A replacement that notes its steps instead of fetching.

    Args:
        fails: The names of the steps that raise.
    """

    def __init__(self, progress, dataset=(), is_iterable=False, fails=()):
        options = {"is_seeded": False, "publishes": False}
        super().__init__(SimpleNamespace(worker_id=0, dataset=dataset, **options), progress)
        self.steps = []
        self.seeds = []
        self.shown = []
        self._desk = SimpleNamespace(show_replay=lambda *done: self.shown.append(done))
        self._fails = fails
        self._iterable = is_iterable
        self._fetcher = SimpleNamespace(fetch=self._fetch, dataset_iter=Restored("iterator", self))

    @property
    def _is_iterable(self):
        return self._iterable

    def noted(self, step):
        self.steps.append(step)
        if step in self._fails:
            raise self._fails[step]

    def _run_init_function(self):
        self.noted("init")

    def _share_seed(self, seed):
        self.seeds.append(seed)

    def _begin_epoch(self):
        self.noted(f"begin {random.random():.3f}")

    def _fetch(self, index):
        self.noted(f"fetch {index}")


class Restored:
    """A dataset, or its iterator, that notes when its state is restored."""

    def __init__(self, name, worker=None):
        self.name = name
        self.worker = worker

    def load_state_dict(self, state):
        self.worker.noted(f"{self.name} at {state}")


class OwnIterator(Restored):
    """A dataset that is its own iterator."""

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration


def taken(seed, **position):
    """Returns a snapshot whose generators have that seed, and the first two draws after it."""
    random.seed(seed)
    state = snapshot.take(Position(**position))
    return state, [f"{random.random():.3f}" for _ in range(2)]


def initialised(progress, **options):
    """Returns a replacement after its first steps."""
    worker = Steps(progress, **options)
    if isinstance(worker._dataset, Restored):
        worker._dataset.worker = worker
    worker._initialise()
    return worker


def test_without_an_answer_it_begins_as_the_dead_worker_did():
    """If the dead worker had answered nothing, its replacement enters the epoch as it did."""
    random.seed(5)
    expected = f"{random.random():.3f}"
    random.seed(5)
    worker = initialised(Past())

    assert (["init", f"begin {expected}"], Position()) == (worker.steps, worker._position)
    assert [] == worker.seeds  # but the one that any worker begins with


def test_an_epoch_begins_with_the_random_states_of_then():
    """The epoch is entered with the states of its beginning, and left with those of the answer."""
    began, at_begin = taken(1)
    latest, after = taken(2, has_begun=True, attempts=3)
    worker = initialised(Past(begun=began, seeds=(7,), latest=latest))

    assert (["init", f"begin {at_begin[0]}"], 3) == (worker.steps, worker._position.attempts)
    assert [7] == worker.seeds
    assert after[0] == f"{random.random():.3f}"


def test_what_was_answered_is_fetched_again():
    """An iterable dataset without a state is brought to its place by as many fetches."""
    latest, _ = taken(2, has_begun=True, attempts=3, index=[None, None])
    worker = initialised(Past(latest=latest), is_iterable=True)

    assert ["fetch [None, None]"] * 3 == worker.steps[2:]
    assert [(0, 3), (1, 3), (2, 3)] == worker.shown


def test_errors_of_repeated_fetches_are_old_news():
    """A fetch that fails again was answered with its error; the end of the data ends them all."""
    latest, _ = taken(2, has_begun=True, attempts=3, index=0)
    for error, count in ((ValueError(), 3), (StopIteration(), 1)):
        progress = Past(latest=latest)
        worker = initialised(progress, is_iterable=True, fails={"fetch 0": error})

        assert (["fetch 0"] * count, None) == (worker.steps[2:], worker._init_error)


@pytest.mark.parametrize(("kind", "place"), [(Restored, 1), (OwnIterator, 2)])
def test_a_dataset_goes_back_to_its_state(kind, place):
    """A state is restored before iter(), or after it if the dataset is its own iterator."""
    latest, _ = taken(2, has_begun=True, attempts=3, dataset={"at": 3})
    dataset = kind("dataset")
    worker = initialised(Past(latest=latest), dataset=dataset, is_iterable=True)

    assert "dataset at {'at': 3}" == worker.steps[place]
    assert 3 == len(worker.steps)


def test_an_iterators_state_saves_the_fetches():
    """If the iterator can tell its state, nothing is fetched again."""
    latest, _ = taken(2, has_begun=True, attempts=3, iterator={"at": 3})
    worker = initialised(Past(latest=latest), is_iterable=True)

    assert "iterator at {'at': 3}" == worker.steps[-1]
    assert 3 == len(worker.steps)


@pytest.mark.parametrize("has_answered", [False, True])
def test_error_of_the_init_function(has_answered):
    """Only if the dead worker had not answered with that error is it the replacement's answer."""
    latest, _ = taken(2, has_begun=False)
    told = Past(latest=latest, has_answered=True)
    progress = told if has_answered else Past()
    worker = initialised(progress, fails={"init": ValueError("no")})

    assert (has_answered, ["init"]) == (worker._init_error is None, worker.steps)


@pytest.mark.parametrize(("kind", "place"), [(Restored, 1), (OwnIterator, 2)])
def test_an_epoch_begins_behind_the_one_before(kind, place):
    """Without an answer in an epoch, it is begun where the last answer before it was."""
    began, at_begin = taken(1, has_begun=True, attempts=3, dataset={"at": 3})
    progress = Past(begun=began, seeds=(7,), has_answered=True)
    worker = initialised(progress, dataset=kind("dataset"), is_iterable=True)

    assert "dataset at {'at': 3}" == worker.steps[place]
    assert [f"begin {at_begin[0]}"] == worker.steps[3:]
    assert ([7], Position()) == (worker.seeds, worker._position)


def test_the_last_fetch_of_an_epoch_that_was_broken_off_is_repeated():
    """A generator must have begun there, from the answer before, with the random states of then."""
    before, _ = taken(1, has_begun=True, attempts=2, index=0, dataset={"at": 2})
    began, at_begin = taken(2, has_begun=True, attempts=3, index=0, dataset={"at": 3})
    progress = Past(begun=began, seeds=(7,), before=before)
    worker = initialised(progress, dataset=Restored("dataset"), is_iterable=True)

    assert ["init", "dataset at {'at': 2}"] == worker.steps[:2]
    assert ["fetch 0", f"begin {at_begin[0]}"] == worker.steps[3:]


def test_what_has_no_state_is_only_begun():
    """Nothing is fetched again of an epoch that is over."""
    began, at_begin = taken(1, has_begun=True, attempts=3, index=0)
    worker = initialised(Past(begun=began, seeds=(None,)), is_iterable=True)

    assert ["init", f"begin {at_begin[0]}"] == worker.steps


def test_a_state_that_was_not_told_is_fetched_again_from_the_epochs_beginning():
    """That beginning is where the last answer before it was, if the dataset told a state there."""
    began, at_begin = taken(1, has_begun=True, attempts=3, dataset={"at": 3})
    latest, _ = taken(2, has_begun=True, attempts=1, index=0, lacks_state=True)
    progress = Past(begun=began, seeds=(None,), latest=latest)
    worker = initialised(progress, dataset=Restored("dataset"), is_iterable=True)

    assert ["init", "dataset at {'at': 3}"] == worker.steps[:2]
    assert [f"begin {at_begin[0]}", "fetch 0"] == worker.steps[3:]


def test_a_beginning_that_was_broken_off_is_repeated():
    """A worker that was told twice to begin an epoch, and answered nothing, has begun two."""
    worker = initialised(Past(seeds=(7, 8)), is_iterable=True)

    assert (["init", "begin", "begin", "begin"], [7, 8]) == (
        [step.split()[0] for step in worker.steps],
        worker.seeds,
    )


@pytest.mark.parametrize("lost", ["begun", "latest"])
def test_a_lost_snapshot_is_no_place(lost):
    """Without the snapshot of its last answer, or of the last before its epoch, none can go on."""
    known = {"begun": b"begun", "latest": b"latest"}

    assert Past(**known).is_known
    assert not Past(**{**known, lost: LOST}).is_known
