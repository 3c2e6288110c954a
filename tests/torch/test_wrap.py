"""wrap(): a loader of ours that is made of one of torch's, of any class."""

import pickle

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import shmloader
from tests.torch.golden.cases import Case
from tests.torch.golden.describe import first_difference
from tests.torch.golden.privates import CountsItself, numbering_batches, pids_of
from tests.torch.golden.recorder import record

pytestmark = pytest.mark.timeout(60)

BATCHES = [[0, 1], [2, 3], [4, 5], [6, 7]]


def numbers(batches):
    """Return the batches as lists."""
    return [batch.tolist() for batch in batches]


def torch_loader(kind=TorchDataLoader, **options):
    """Make a loader of torch's over eight numbers, in four batches, from two workers."""
    given = {"batch_size": 2, "num_workers": 2, "multiprocessing_context": "fork"}
    return kind(range(8), **{**given, **options})


SHARED = ("dataset", "sampler", "batch_sampler", "collate_fn", "generator", "worker_init_fn")
KEPT = ("batch_size", "drop_last", "num_workers", "timeout", "prefetch_factor", "in_order")


def test_wrap_shares_what_the_loader_was_given():
    """A wrapped loader is ours and holds the very objects and settings of torch's."""
    loader = torch_loader(shuffle=True, timeout=9, generator=torch.Generator(), prefetch_factor=3)

    wrapped = shmloader.wrap(loader)

    assert isinstance(wrapped, shmloader.DataLoader)
    assert all(getattr(loader, name) is getattr(wrapped, name) for name in SHARED)
    assert [getattr(loader, name) for name in KEPT] == [getattr(wrapped, name) for name in KEPT]
    assert loader.multiprocessing_context is wrapped.multiprocessing_context


WRAPPED_CASES = [
    Case("map", "eager"),
    Case("map", "generator", persistent=True),
    Case("map", "batch_sampler"),
    Case("map", "eager_unbatched"),
    Case("sharded", "sequential", persistent=True),
    Case("pipe", "sequential"),
]


@pytest.mark.core(every=3)
@pytest.mark.parametrize("case", WRAPPED_CASES, ids=str)
def test_wrapped_run_equals_torch(case):
    """A wrapped loader gives the same run as the loader that it was made of."""

    def wrapped(dataset, **options):
        return shmloader.wrap(TorchDataLoader(dataset, **options))

    difference = first_difference(record(case, TorchDataLoader), record(case, wrapped))

    assert difference is None


def test_wrap_without_workers():
    """A loader without workers can be wrapped as well."""
    loader = torch_loader(num_workers=0, multiprocessing_context=None)

    assert BATCHES == numbers(shmloader.wrap(loader))


def test_wrap_keeps_a_subclass():
    """A subclass keeps its attributes and its way to iterate, and is not built again."""
    loader = torch_loader(numbering_batches(TorchDataLoader), first=10)

    wrapped = shmloader.wrap(loader)

    assert 10 == wrapped.first
    assert [*enumerate(BATCHES, 10)] == [(number, batch.tolist()) for number, batch in wrapped]


class Pooled(TorchDataLoader):
    """A loader with an attribute that many classes have."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._pool = "its own"


def test_wrap_keeps_attributes_of_likely_names():
    """What a subclass calls its own is neither overwritten by a wrap nor lost by a pickle."""
    wrapped = shmloader.wrap(torch_loader(Pooled))

    assert "its own" == wrapped._pool
    assert "its own" == pickle.loads(pickle.dumps(wrapped))._pool
    assert BATCHES == numbers(wrapped)


def test_wrap_builds_nothing_again():
    """Neither the subclass nor its sampler is made a second time."""
    loader = torch_loader(CountsItself)

    wrapped = shmloader.wrap(loader)

    assert 1 == CountsItself.made
    assert BATCHES == numbers(wrapped)


def test_wrap_leaves_the_loader_alone():
    """The wrapped loader has workers of its own, and the original goes on with its epoch."""
    loader = torch_loader(persistent_workers=True)
    iterator = iter(loader)
    next(iterator)

    wrapped = shmloader.wrap(loader)

    assert BATCHES == numbers(wrapped)
    assert BATCHES[1:] == numbers(iterator)
    assert not {*pids_of(loader._iterator)} & {*pids_of(wrapped._iterator)}
    assert TorchDataLoader is type(loader)


def test_wrap_takes_options_of_ours():
    """Options of ours are given with the call and stand on the wrapped loader."""
    wrapped = shmloader.wrap(torch_loader(), slots=7, ring_bytes=2**24)

    assert (7, None, 2**24) == (wrapped.slots, wrapped.slot_bytes, wrapped.ring_bytes)
    assert BATCHES == numbers(wrapped)
