"""
Collate functions that ask torch for a storage in shared memory get slot memory, and nothing else.
"""

import os
import resource

import pytest
import torch

from shmloader import DataLoader
from shmloader.worker import collate
from tests.helpers.collates import KINDS, SIZE, Graph
from tests.helpers.datasets import Computed
from tests.helpers.forgery import Forger
from tests.helpers.leaves.parts import are_same
from tests.helpers.segments import in_slots
from tests.helpers.threads import on_a_thread
from tests.torch.golden.outcomes import attempt

BATCHES = 10
TORCHS = torch.utils.data.DataLoader

# torch says so of each complex32, in the worker and here.
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")


def open_loader(loader_class, make, collate_fn, **options):
    """Open a loader over batches of samples that `make` makes, with one worker."""
    options = {"batch_size": SIZE, "num_workers": 1, "timeout": 30, **options}
    return loader_class(Computed(BATCHES * SIZE, make), collate_fn=collate_fn, **options)


# Whole batches, beside torch


def no_new_file(worker):
    """Let this process open nothing more: a file in shared memory, too, is a descriptor first."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@pytest.mark.core(first=1)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_torchs_and_no_file_is_made(kind):
    """
    A worker that can open no file, where torch's makes none, makes the same batches.

    Types, attributes, strides and bits are torch's, and no slot is lost.
    """
    make, collate_fn = KINDS[kind]
    theirs = open_loader(TORCHS, make, collate_fn, worker_init_fn=no_new_file)
    assert attempt(lambda: next(iter(theirs))).kind == "builtins.RuntimeError"

    expected = open_loader(TORCHS, make, collate_fn)
    with open_loader(DataLoader, make, collate_fn, worker_init_fn=no_new_file) as loader:
        for one, other in zip(expected, loader, strict=True):
            assert are_same(one, other)
        stats = loader.stats()

    assert (0, 0) == (stats.retired, stats.spilled)


@pytest.mark.parametrize("kind", ["picture", "scan", "graphs", "half complex"])
def test_a_leaf_is_written_once(kind):
    """A slot holds the bytes of each leaf once, even if the leaf travels as a pickle."""
    make, collate_fn = KINDS[kind]
    with open_loader(DataLoader, lambda index: large(make(index)), collate_fn) as loader:
        leaves = [leaf for batch in loader for leaf in tensors_of(batch)]
        written = loader.stats().bytes

    assert sum(leaf.nbytes for leaf in leaves) <= written < 1.1 * sum(x.nbytes for x in leaves)


def large(sample):
    if isinstance(sample, Graph):
        return Graph(*(large(leaf) for leaf in vars(sample).values()))
    made = sample.repeat_interleave(1000, -1)
    made.__dict__.update(sample.__dict__)
    return made


def tensors_of(batch):
    return list(vars(batch).values()) if isinstance(batch, Graph) else [batch]


# Which storages


@pytest.fixture
def forger():
    """A desk that has an order in hand, in a process whose storages come from it."""
    forger = Forger()
    forger.ledger.place(0, 0, [0])
    forger.desk.take(1.0)
    collate.use(forger.desk)
    yield forger
    collate.leave()
    forger.close()


def where(storage):
    """Say what kind of memory a storage is."""
    if in_slots([storage]) == [True]:
        return "slot"
    return "torch's" if storage.is_shared() else "private"


def new_shared(size=24, **options):
    return torch.UntypedStorage._new_shared(size, **options)


collated_here = collate.with_slot(lambda action: action())


def test_only_a_collate_function_gets_slot_memory(forger):
    """Outside of a collate function, and after it or its error, torch's own storage is made."""
    assert "torch's" == where(new_shared())
    assert "slot" == collated_here(lambda: where(new_shared()))
    assert "slot" == collated_here(lambda: (collated_here(new_shared), where(new_shared())))[1]
    with pytest.raises(ZeroDivisionError):
        collated_here(lambda: 1 / 0)
    assert "torch's" == where(new_shared())
    assert "torch's" == collated_here(lambda: on_a_thread(lambda: where(new_shared())))


def test_a_thread_that_collates_gets_private_memory(forger):
    """torch's function for tensors on another thread than the worker's makes no file."""
    assert "private" == on_a_thread(lambda: collated_here(lambda: where(new_shared())))


def test_without_a_slot_memory_is_private(forger):
    """A collate function that runs between two batches gets memory that no slot holds."""
    forger.desk.write(1, False)
    forger.desk.commit()

    assert "private" == collated_here(lambda: where(new_shared()))


def test_a_forked_child_has_torchs_own(forger):
    """A child that a collate function forks makes storages as if there were no loader."""

    def fork():
        pid = os.fork()
        if pid == 0:
            collate.leave()  # as worker.collate does in each child
            os._exit(["slot", "private", "torch's"].index(where(new_shared())))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert collated_here(fork) == 2


def test_copied_in_batches_get_private_memory():
    """If the trainer wants this batch copied in, its storages are private memory."""
    forger = Forger()
    forger.ledger.place(0, 0, [0], True)
    forger.desk.take(1.0)
    collate.use(forger.desk)
    made = collated_here(lambda: where(new_shared()))
    collate.leave()
    forger.close()

    assert "private" == made


SIZES = [0, 1, 24, True, torch.tensor(3), -1, 3.0, "3", None]


@pytest.mark.core(every=3)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("place", ["slot", "private"])
def test_sizes_are_torchs(forger, size, place):
    """A storage has the size asked for, cannot be resized, or is refused with torch's words."""

    def ask():
        storage = new_shared(size)
        return storage.nbytes(), storage.resizable(), str(storage.device), type(storage)

    expected = attempt(ask)
    run = on_a_thread if place == "private" else lambda action: action()

    assert expected == run(lambda: collated_here(lambda: attempt(ask)))


@pytest.mark.parametrize("options", [{"device": "meta"}, {"device": None}, {"device": "nonsense"}])
def test_other_devices_are_torchs(forger, options):
    """Storages of other devices than the CPU, and errors about devices, are torch's."""

    def ask():
        return str(new_shared(**options).device)

    assert attempt(ask) == collated_here(lambda: attempt(ask))


# In real workers


def test_a_dataset_that_asks_has_torchs_own():
    """A dataset, and an init function, share memory as long as they want: it is no slot's."""
    first = []

    def initialise(worker):
        first.append(where(new_shared()))

    loader = open_loader(
        DataLoader,
        lambda index: (where(new_shared()), first[0]),
        lambda samples: [*samples, where(new_shared())],
        worker_init_fn=initialise,
    )
    with loader:
        for batch in loader:
            assert [("torch's", "torch's")] * SIZE + ["slot"] == batch
