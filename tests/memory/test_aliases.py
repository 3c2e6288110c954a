"""Invariant 4 on real loaders: a slot is kept by any alias of its batch, and by nothing else."""

import gc
import itertools
import threading

import numpy
import pytest
import torch
from torch.utils.data import default_collate

import shmloader
from shmloader import DataLoader
from tests.helpers.datasets import Computed, Numbered, batch, state

pytestmark = pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")

SIZE = 4
BATCHES = 30
FIRST = batch(0, SIZE)


def keep_for_backward(tensor):
    weight = torch.ones_like(tensor, requires_grad=True)
    loss = (weight * tensor).sum()

    def read():
        weight.grad = None
        loss.backward(retain_graph=True)
        return weight.grad

    return read


def keep_in_storage(tensor):
    storage = tensor.untyped_storage()
    return lambda: torch.empty(0, dtype=torch.float64).set_(storage).view(SIZE, -1)


def keep_under_inference(tensor):
    with torch.inference_mode():
        rows = tensor[:]
    return lambda: rows.clone()


def keep_in_memoryview(tensor):
    view = memoryview(tensor.numpy())
    return lambda: torch.from_numpy(numpy.asarray(view))


def keep_through_dlpack(tensor):
    array = numpy.from_dlpack(tensor)
    return lambda: torch.from_numpy(array.copy())


def keep_in_thread(tensor):
    asked, answers = threading.Event(), []

    def hold(tensor):
        asked.wait()
        answers.append(tensor.clone())

    thread = threading.Thread(target=hold, args=(tensor,))
    thread.start()

    def read():
        asked.set()
        thread.join()
        return answers[0]

    return read


def keep_in_cycle(tensor):
    node = {"tensor": tensor}
    node["itself"] = node
    return lambda: node["tensor"]


def keep(make):
    """Keep what `make` derives from a tensor, in a closure."""

    def keeper(tensor):
        kept = make(tensor)
        return lambda: kept

    return keeper


def keep_array(make):
    def keeper(tensor):
        kept = make(tensor.numpy())
        return lambda: torch.from_numpy(kept)

    return keeper


KEEPERS = {
    "batch": keep(lambda tensor: tensor),
    "view": keep(lambda tensor: tensor[:, :]),
    "numpy": keep_array(lambda array: array),
    "memoryview": keep_in_memoryview,
    "storage": keep_in_storage,
    "inference_mode": keep_under_inference,
    "backward": keep_for_backward,
    "dlpack": keep_through_dlpack,
    "thread": keep_in_thread,
    "cycle": keep_in_cycle,
}


def arrays(samples):
    """Collate to an ndarray."""
    return numpy.stack([item.numpy() for item in samples])


def open_loader(**options):
    """Two batches in flight and six slots: up to four may be leased."""
    dataset = options.pop("dataset", Numbered(SIZE * BATCHES))
    settings = {"batch_size": SIZE, "num_workers": 1, "prefetch_factor": 2, "slots": 6}
    return DataLoader(dataset, **{**settings, **options})


@pytest.mark.core(values=1)
@pytest.mark.parametrize("collate_fn", [None, arrays])
@pytest.mark.parametrize("keeper", KEEPERS.values(), ids=KEEPERS.keys())
def test_slot_lives_as_long_as_an_alias(keeper, collate_fn):
    """A batch kept in any way reads the same after all others were overwritten; then it is free."""
    with open_loader(collate_fn=collate_fn) as loader:
        batches = iter(loader)
        read = keeper(torch.as_tensor(next(batches)))
        for number, other in enumerate(batches, 1):
            assert torch.equal(batch(number, SIZE), torch.as_tensor(other))
        del other
        assert state(loader, "leased") == 1
        assert torch.equal(FIRST, read())
        del read
        gc.collect()
        assert state(loader, "leased") == 0
        assert loader.stats().spilled == 0


# The worker's side


class Keeping:
    """
    A collate function that keeps something of each batch and checks that all of it is unchanged.
    """

    def __init__(self, keep):
        self.keep = keep
        self.kept = []

    def __call__(self, samples):
        made = default_collate(samples)
        self.kept.append((self.keep(made), made.clone()))
        intact = all(torch.equal(copy, self.look(kept, copy)) for kept, copy in self.kept)
        return made, intact

    @staticmethod
    def look(kept, copy):
        if isinstance(kept, torch.UntypedStorage):
            kept = torch.empty(0, dtype=copy.dtype).set_(kept)
        return torch.as_tensor(numpy.asarray(kept)).view(copy.dtype).reshape(copy.shape)


WORKER_KEEPS = {
    "batch": lambda made: made,
    "view": lambda made: made[:],
    "numpy": lambda made: made.numpy(),
    "memoryview": lambda made: memoryview(made.numpy()),
    "storage": lambda made: made.untyped_storage(),
}


@pytest.mark.parametrize("in_place", [False, True], ids=["read", "in place"])
@pytest.mark.parametrize("keep", WORKER_KEEPS.values(), ids=WORKER_KEEPS.keys())
def test_what_a_worker_keeps_never_changes(keep, in_place):
    """A collate_fn that keeps its batches sees none of them change, whatever the trainer does."""
    with open_loader(collate_fn=Keeping(keep), persistent_workers=True) as loader:
        for number, (made, intact) in enumerate(itertools.chain(loader, loader)):
            assert torch.equal(batch(number % BATCHES, SIZE), made)
            assert intact
            if in_place:
                made.zero_()
        assert number == 2 * BATCHES - 1
        assert loader.stats().retired > 0


class Replaying:
    """A collate function that gives every batch twice."""

    def __init__(self):
        self.last = None

    def __call__(self, samples):
        if self.last is None:
            self.last = default_collate(samples)
            return self.last
        again, self.last = self.last, None
        return again


def test_a_batch_given_twice_is_the_same_twice():
    """A replayed batch is what it was, even when the trainer worked on the first one in place."""
    with open_loader(collate_fn=Replaying()) as loader:
        for number, made in enumerate(loader):
            assert torch.equal(batch(number - number % 2, SIZE), made)
            made.neg_()
        assert number == BATCHES - 1


@pytest.mark.core(first=1)
@pytest.mark.parametrize(
    ("workers", "prefetch_factor", "slots"),
    [(1, 1, 1), (1, 2, 2), (2, 2, None), (2, 150, None), (1, 600, 700)],
)
def test_a_cache_of_everything_never_runs_out_of_slots(workers, prefetch_factor, slots):
    """A worker that keeps all its batches delivers the whole epoch, even with deep rings."""
    kept = []

    def make(index):
        tensor = shmloader.empty((4,), torch.int64).fill_(index)
        kept.append(tensor)
        return tensor

    loader = DataLoader(
        Computed(2000, make),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=prefetch_factor,
        slots=slots,
    )
    with loader:
        firsts = [made[0].item() for made in loader]
    assert list(range(2000)) == firsts
