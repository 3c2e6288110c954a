"""wrap(): a loader of ours that is made of one of torch's, of any class."""

import inspect
import pickle

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import shmloader
from tests.torch.golden.cases import Case
from tests.torch.golden.describe import first_difference
from tests.torch.golden.privates import (
    BATCHES,
    IN_TWO_WORKERS,
    Forever,
    ThreadContext,
    numbering_batches,
    numbers,
    pids_of,
    sampled_forever,
)
from tests.torch.golden.recorder import record

pytestmark = pytest.mark.timeout(60)


def torch_loader(kind=TorchDataLoader, **options):
    """Make a loader of torch's over eight numbers, in four batches, from two workers."""
    return kind(range(8), **{**IN_TWO_WORKERS, **options})


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


@pytest.mark.thorough
@pytest.mark.parametrize("case", WRAPPED_CASES, ids=str)
def test_wrapped_run_equals_torch(case):
    """A wrapped loader gives the same run as the loader that it was made of."""

    def wrapped(dataset, **options):
        return shmloader.wrap(TorchDataLoader(dataset, **options))

    difference = first_difference(record(case, TorchDataLoader), record(case, wrapped))

    assert difference is None


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
    again = pickle.loads(pickle.dumps(wrapped))

    assert isinstance(again, Pooled) and isinstance(again, shmloader.DataLoader)
    assert "its own" == wrapped._pool == again._pool
    assert BATCHES == numbers(wrapped)


@pytest.mark.thorough
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


class Prepared:
    """A proxy, as accelerate's: it has the class of the loader that it iterates, and no other."""

    def __init__(self, base):
        self.base_dataloader = base

    def __getattr__(self, name):
        return getattr(vars(self)["base_dataloader"], name)

    @property
    def __class__(self):
        return self.base_dataloader.__class__

    def __iter__(self):
        for batch in self.base_dataloader:
            yield batch + 100


class GoesThrough(TorchDataLoader):
    """A loader that iterates another one, as Ray Train's."""

    def __init__(self, base):
        self.__dict__.update(vars(base))
        self._dataloader = base

    def __iter__(self):
        for batch in self._dataloader:
            yield batch + 100


@pytest.mark.parametrize(
    ("kind", "name"), [(Prepared, "base_dataloader"), (GoesThrough, "_dataloader")]
)
def test_loader_around_another_is_refused(kind, name):
    """What iterates a loader inside is not wrapped; the loader inside can be, as the error says."""
    outer = kind(torch_loader())

    with pytest.raises(TypeError, match=rf"{kind.__name__}.*: wrap th"):
        shmloader.wrap(outer)
    inner = shmloader.wrap(getattr(outer, name))
    setattr(outer, name, inner)
    assert [[row + 100 for row in batch] for batch in BATCHES] == numbers(outer)
    assert len(BATCHES) == inner.stats().batches


class Doubles(TorchDataLoader):
    """A loader with iterators of its own, as StatefulDataLoader and NodeLoader have them."""

    def _get_iterator(self):
        return (2 * batch for batch in super()._get_iterator())


class Holder:
    """No loader, but it holds some, as what frameworks make of a loader does."""

    def __init__(self, **parts):
        self.__dict__.update(parts)


def test_what_is_no_loader_is_refused():
    """Also what holds a loader."""
    with pytest.raises(TypeError, match=r"got Holder$"):
        shmloader.wrap(Holder(loader=TorchDataLoader([1])))
    with pytest.raises(TypeError, match="speed"):
        shmloader.wrap(torch_loader(), speed=3)


@pytest.mark.thorough
def test_loader_with_its_own_iterators_is_refused():
    """What overrides _get_iterator is refused; a class over both does what it does."""

    class Served(Doubles, shmloader.DataLoader):
        pass

    with pytest.raises(TypeError, match=r"Doubles.* class Served\(Doubles, shmloader.DataLoader\)"):
        shmloader.wrap(torch_loader(Doubles))
    served = torch_loader(Served, slots=7)
    assert numbers(torch_loader(Doubles)) == numbers(served)
    assert (7, len(BATCHES)) == (served.slots, served.stats().batches)
    assert type(served) is type(shmloader.wrap(served))


class ManyEpochs(TorchDataLoader):
    """A loader that makes one iterator for all epochs when it is first iterated, as timm's."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        object.__setattr__(self, "batch_sampler", Forever(self.batch_sampler))
        self.iterator = None

    def __iter__(self):
        if self.iterator is None:
            self.iterator = super().__iter__()
        for _ in BATCHES:
            yield next(self.iterator)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [ManyEpochs, sampled_forever(TorchDataLoader)])
def test_live_iterator_is_refused(kind):
    """A loader that goes on with an iterator of torch's is refused; a class over both is ours."""
    loader = torch_loader(kind)
    next(iter(loader))

    with pytest.raises(
        TypeError, match=r"live iterator in loader\.iterator: wrap the loader before"
    ):
        shmloader.wrap(loader)
    loader.iterator._shutdown_workers()
    served = torch_loader(type("Served", (kind, shmloader.DataLoader), {}))
    epoch = iter(served)
    assert BATCHES == [next(epoch).tolist() for _ in BATCHES]
    assert served.stats().batches >= len(BATCHES)
    served.close()


def test_loader_of_many_epochs_can_be_wrapped_before_the_first():
    """As long as no iterator is alive, a loader that keeps one for all epochs is served."""
    wrapped = shmloader.wrap(torch_loader(ManyEpochs))

    assert [BATCHES, BATCHES] == [numbers(wrapped), numbers(wrapped)]
    assert 2 * len(BATCHES) == wrapped.stats().batches
    wrapped.close()


@pytest.mark.parametrize("make", [shmloader.wrap, iter])
def test_threads_are_refused(make):
    """Threads are no workers of ours, neither for a wrapped loader nor for one of our own."""
    kind = TorchDataLoader if make is shmloader.wrap else shmloader.DataLoader
    loader = torch_loader(kind, multiprocessing_context=ThreadContext())

    with pytest.raises(TypeError, match=r"ThreadContext are threads.*use_thread_workers=False"):
        make(loader)


class Follows(TorchDataLoader):
    """A loader with a signature of its own, as PyTorch Geometric's."""

    def __init__(self, dataset, batch_size=1, shuffle=False, follow=None, **options):
        options.pop("collate_fn", None)
        self.follow = follow
        super().__init__(dataset, batch_size, shuffle, collate_fn=self.collate, **options)

    def collate(self, samples):
        return torch.tensor(samples), self.follow


def rebuilt(loader):
    """Build a loader again as Lightning does: from the attributes that its signature names."""
    parameters = dict(inspect.signature(loader.__init__).parameters)
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        parameters.update(inspect.signature(TorchDataLoader.__init__).parameters)
    given = {name: value for name, value in vars(loader).items() if name in parameters}
    sampler = {"sampler": loader.sampler, "batch_sampler": None, "shuffle": False}
    known = {name: value for name, value in sampler.items() if name in parameters}
    return type(loader)(**{**given, **known})


@pytest.mark.thorough
def test_wrapped_subclass_is_built_again():
    """A class made by wrap() takes its kind's arguments and our options, by its signature."""
    wrapped = shmloader.wrap(
        Follows(range(8), 2, follow="x", num_workers=2), slots=7, restarts=1, ring_bytes=1 << 24
    )

    again = rebuilt(wrapped)
    assert type(wrapped).__mro__[1:] == type(again).__mro__[1:]
    assert (7, 1, 1 << 24, "x") == (again.slots, again.restarts, again.ring_bytes, again.follow)
    assert [(batch, "x") for batch in BATCHES] == [(rows.tolist(), name) for rows, name in again]
    assert len(BATCHES) == again.stats().batches
    assert [*inspect.signature(Follows).parameters][:4] == [
        *inspect.signature(type(wrapped)).parameters
    ][:4]
