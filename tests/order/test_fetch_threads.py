"""`fetch_threads`: the same batches and errors, from samples that threads of the worker fetch."""

import contextlib
import functools
import gc
import sys
import threading
import time

import numpy
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Subset

import shmloader
from shmloader import DataLoader
from tests.helpers.datasets import Computed
from tests.helpers.healing import healed, torch_options, undisturbed
from tests.helpers.mortal import Script
from tests.helpers.programs import wait_until
from tests.order.test_seeds import epochs

COUNT, BATCH = 53, 4


class Waiting(Dataset):
    """Samples (3,) float32, some later than those behind them; errors where it is told."""

    def __init__(self, errors=None, script=None):
        self.errors = errors or {}
        self.script = script

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        time.sleep(0.002 * (index * 7 % 3))
        if self.script is not None:
            self.script(f"item {index}")
        if index in self.errors:
            raise self.errors[index]
        return numpy.full(3, index, numpy.float32)


class WaitingAtOnce(Waiting):
    """The same by `__getitems__`, which notes the sizes of its requests in the samples."""

    def __getitems__(self, indices):
        return [self[index] + 1000 * len(indices) for index in indices]


def fetched_on(index):
    """A sample (4,) int64: index, thread, whether gradients are on, and whether it is a daemon."""
    time.sleep(0.002)
    thread = threading.current_thread()
    return torch.tensor([index, thread.ident, torch.is_grad_enabled(), thread.daemon])


class Gated(Dataset):
    """Each sample waits until as many are fetched at once as a test demands, in one process."""

    def __init__(self, at_once):
        self.at_once = at_once
        self.inside = 0
        self.met = threading.Event()
        self.turn = None

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        self.inside += 1  # one bytecode too many, and still never above what it should be
        if self.inside >= self.at_once:
            self.met.set()
        return torch.tensor([index, self.met.wait(20)])


TWICE = (None, None)


def theirs(dataset, **options):
    """Iterate torch's loader twice: the content of each batch, or the last line of its error."""
    return undisturbed(dataset, TWICE, shuffle=True, **options)


def ours(dataset, **options):
    """The same of ours."""
    return healed(dataset, TWICE, **{"shuffle": True, "restarts": 0, **options})[0]


@functools.cache
def torchs(*options):
    """Iterate torch's loader, for any number of threads of ours."""
    return theirs(Waiting(), **dict(options))


@pytest.mark.core(first=1)
@pytest.mark.parametrize("threads", [1, 3, 40])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 1, "prefetch_factor": 5},
        {"persistent_workers": True},
        {"assignment": "dynamic"},
        {"batch_size": None},
        {"slots": 2},
        {"drop_last": True},
    ],
    ids=str,
)
def test_batches_are_torchs(threads, options):
    """Threads change nothing that can be seen of a batch."""
    expected = torchs(*torch_options(options).items())

    assert expected == ours(Waiting(), fetch_threads=threads, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("dataset", [WaitingAtOnce(), Subset(WaitingAtOnce(), range(3, COUNT))])
def test_a_dataset_that_takes_whole_requests(dataset):
    """`__getitems__` gets each request whole, through a Subset too."""
    expected = theirs(dataset)

    assert expected == ours(dataset, fetch_threads=3)
    assert expected[0][0][0][0] >= 1000


@pytest.mark.parametrize("depth", [1, 2])
def test_a_subset_of_singles_is_fetched_singly(depth):
    """A Subset counts as what it wraps: its samples are fetched side by side."""
    dataset = Computed(COUNT, fetched_on)
    for _ in range(depth):
        dataset = Subset(dataset, range(COUNT))
    with DataLoader(dataset, 16, num_workers=1, fetch_threads=4) as loader:
        first = next(iter(loader))
    assert 4 == len(set(first[:, 1].tolist()))


def test_as_many_fetch_at_once_as_there_are_threads():
    """Samples of two batches are fetched side by side, in one worker."""
    options = {"batch_size": 2, "num_workers": 1, "prefetch_factor": 3, "fetch_threads": 6}
    with DataLoader(Gated(6), **options) as loader:
        met = [flag for batch in loader for flag in batch[:, 1].tolist()]
    assert [1] * COUNT == met


@pytest.mark.parametrize("grad", [True, False])
def test_modes_of_the_worker_hold_on_its_threads(grad):
    """What the init function sets for its thread is set for those that fetch."""

    def init(_):
        torch.set_grad_enabled(grad)

    options = {"num_workers": 1, "fetch_threads": 3, "worker_init_fn": init}
    with DataLoader(Computed(COUNT, fetched_on), BATCH, **options) as loader:
        rows = torch.cat([batch.clone() for batch in loader])
    assert {grad} == set(rows[:, 2].tolist()) and {1} == set(rows[:, 3].tolist())
    assert 1 < len(set(rows[:, 1].tolist())) <= 3


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Waiting, WaitingAtOnce])
def test_the_first_error_of_a_batch_is_raised(kind):
    """As if fetched in turn: the error of the earliest sample, whichever came first."""
    errors = {5: LookupError("five"), 6: LookupError("six"), 21: LookupError("twenty-one")}
    expected = theirs(kind(errors))
    actual = ours(kind(errors), fetch_threads=5)

    assert expected == actual
    assert any("LookupError" in batch for batch in actual[0] if isinstance(batch, str))


def test_the_traceback_leads_to_the_dataset():
    """The error's text shows the line of the dataset that raised."""
    with (
        DataLoader(Waiting({2: LookupError("two")}), BATCH, num_workers=1, fetch_threads=2) as it,
        pytest.raises(LookupError, match=r"raise self\.errors"),
    ):
        next(iter(it))


def leave(index):
    """Make a sample, or end the process."""
    return sys.exit(3) if index == 9 else index


def test_sys_exit_on_a_thread_ends_the_worker():
    """It does what it does without threads."""
    with DataLoader(Computed(COUNT, leave), BATCH, num_workers=1, fetch_threads=3) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        with pytest.raises(RuntimeError, match="exited unexpectedly"):
            next(iterator)


def stuck(folder):
    """Samples of which one never comes."""

    def sample(index):
        if index == 9:
            (folder / "reached").touch()
            time.sleep(1000)
        return index

    return Computed(COUNT, sample)


@pytest.mark.thorough
def test_a_blocked_thread_does_not_keep_its_worker(tmp_path):
    """The worker leaves when it is told to, long before it would be killed."""
    loader = DataLoader(stuck(tmp_path), BATCH, num_workers=1, fetch_threads=3)
    iterator = iter(loader)
    next(iterator)
    assert wait_until((tmp_path / "reached").exists)
    (worker,) = iterator._workers
    loader.close()

    assert 0 == worker.exitcode


@pytest.mark.thorough
def test_a_timeout_ends_a_blocked_thread(tmp_path):
    """`timeout` holds for what threads fetch."""
    loader = DataLoader(stuck(tmp_path), BATCH, num_workers=1, fetch_threads=3, timeout=1)
    with loader, pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        list(loader)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["SIGKILL", "os._exit(7)"])
@pytest.mark.parametrize("assignment", ["cycle", "dynamic"])
def test_deaths_are_healed(way, assignment, tmp_path):
    """With `seed_by="batch"` a replacement fetches what the dead worker held."""
    script = Script(tmp_path, "item 3", "item 3", "item 30", "item 31", way=way)
    options = {"fetch_threads": 3, "seed_by": "batch", "restarts": 30, "assignment": assignment}

    assert torchs() == ours(Waiting(script=script), **options)
    assert [] == script.left


def own_draws(index):
    """Draw from `rng()` alone."""
    first = shmloader.rng().random()
    time.sleep(0.001 * (index % 3))
    return torch.tensor([index, first, shmloader.rng().random()], dtype=torch.float64)


@pytest.mark.thorough
@pytest.mark.parametrize("threads", [1, 4])
def test_rng_is_exact_on_threads(threads):
    """What `rng()` draws does not depend on the thread."""
    expected = epochs(Computed(COUNT, own_draws))

    assert expected == epochs(Computed(COUNT, own_draws), num_workers=2, fetch_threads=threads)


class FailingInit:
    """Fails in every worker."""

    def __call__(self, _):
        raise LookupError("no start")


@pytest.mark.thorough
def test_an_error_of_the_init_function():
    """It is raised once, and then torch's error for the missing fetcher."""
    errors = []
    for kind, own in ((TorchDataLoader, {}), (DataLoader, {"fetch_threads": 2})):
        loader = kind(Waiting(), BATCH, num_workers=1, worker_init_fn=FailingInit(), **own)
        iterator = iter(loader)
        for _ in range(3):
            with pytest.raises((LookupError, NameError)) as caught:
                next(iterator)
            errors.append(str(caught.value).strip().splitlines()[-1])
        iterator._shutdown_workers()
        del iterator, loader
    assert errors[:3] == errors[3:]


class Unready:
    """A request of two indices that raises behind the first."""

    def __iter__(self):
        yield 1
        raise LookupError("the second index")


@pytest.mark.core(first=1)
@pytest.mark.parametrize(
    ("request_", "errors", "kind"),
    [
        (5, {}, TypeError),
        (Unready(), {}, LookupError),
        (Unready(), {1: ValueError("one")}, ValueError),
    ],
)
def test_a_request_that_is_no_list_of_indices(request_, errors, kind):
    """Its error is its answer, behind those of the samples before; the others come."""
    requests = [[0], request_, [2]]
    for loader_kind, options in ((TorchDataLoader, {}), (DataLoader, {"fetch_threads": 2})):
        loader = loader_kind(
            Waiting(errors=errors), batch_sampler=requests, num_workers=1, **options
        )
        batches = iter(loader)
        assert next(batches)[:, 0].tolist() == [0]
        with pytest.raises(kind):
            next(batches)
        assert next(batches)[:, 0].tolist() == [2]
        assert not list(batches)


def raise_for_floats(worker_id):
    numpy.seterr(all="raise")


@pytest.mark.thorough
def test_settings_in_the_context_hold_on_the_threads():
    """What numpy is told to raise in the worker, it raises for each sample."""
    dividing = Computed(COUNT, lambda index: numpy.float64(1) / numpy.float64(0))
    options = {"worker_init_fn": raise_for_floats, "fetch_threads": 2}
    loader = DataLoader(dividing, BATCH, num_workers=1, **options)
    with pytest.raises(FloatingPointError):
        next(iter(loader))


class Counted(Waiting):
    """Samples that know how many of them live; one in seven raises."""

    alive = 0

    def __getitem__(self, index):
        sample = CountedSample()
        if index % 7 == 3:
            raise ValueError(index)
        return sample


class CountedSample:
    def __init__(self):
        Counted.alive += 1

    def __del__(self):
        Counted.alive -= 1


def count_alive(samples):
    return Counted.alive


def without_collections(worker_id):
    gc.disable()


@pytest.mark.thorough
def test_batches_that_raise_keep_no_samples():
    """Neither those beside the error nor what its traceback refers to, without a collection."""
    ahead = 2
    loader = DataLoader(
        *(Counted(), BATCH),
        num_workers=1,
        prefetch_factor=ahead,
        fetch_threads=3,
        collate_fn=count_alive,
        worker_init_fn=without_collections,
    )
    counts = []
    batches = iter(loader)
    for _ in range(len(loader)):
        with contextlib.suppress(ValueError):
            counts.append(next(batches))
    assert 0 < len(counts) < len(loader)
    assert max(counts) <= (ahead + 1) * BATCH


IN_NATIVE_CODE = """
import torch
from shmloader import DataLoader

class Sorted(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.rand(40_000).sort().values[:1]

if __name__ == "__main__":
    options = {"num_workers": 1, "multiprocessing_context": "spawn", "fetch_threads": 8}
    with DataLoader(Sorted(), batch_size=8, **options) as loader:
        iterator = iter(loader)
        workers = iterator._workers
        next(iterator)
    print([worker.exitcode for worker in workers])
"""


@pytest.mark.thorough
def test_a_worker_that_leaves_awaits_its_threads(run_program):
    """
    A thread that is in native code when its worker leaves returns before the interpreter exits.

    One that returns later is unwound through frames of C++, which ends the process by abort().
    """
    status, lines, errors = run_program(IN_NATIVE_CODE)

    assert (0, ["[0]"], "") == (status, lines, errors)
