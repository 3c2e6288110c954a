"""A loader that is copied, pickled, or made again from its attributes is as good as the first."""

import copy
import inspect
import pickle

import pytest
import torch

import shmloader
from shmloader import DataLoader
from tests.helpers.copies import pickled
from tests.torch.golden.outcomes import alike, attempt
from tests.torch.golden.privates import BATCHES, IN_TWO_WORKERS, numbers, rebuilt

pytestmark = pytest.mark.timeout(60)


# Copies


@pytest.mark.core(first=1)
@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize("iterated", [False, True])
def test_copies_of_a_loader(build, clone, iterated):
    """A loader that is not being iterated can be copied and pickled, and both work."""
    loader = build()
    if iterated:
        assert BATCHES == numbers(loader)

    twin = clone(loader)

    assert type(loader) is type(twin)
    assert [(a.tolist(), b.tolist()) for a, b in zip(loader, twin, strict=True)] == [
        (batch, batch) for batch in BATCHES
    ]
    del loader
    assert BATCHES == numbers(twin)


def wrapped(loader):
    return shmloader.wrap(loader, seed_by="batch")


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, pickled, wrapped])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_copy_goes_on_from_a_state_that_was_loaded(clone, workers):
    """Until an iterator has begun, what was loaded is a part of the loader."""

    def opened():
        generator = torch.Generator().manual_seed(1)
        options = {"num_workers": workers, "seed_by": "batch"}
        return DataLoader(range(20), 2, True, generator=generator, **options)

    loader = opened()
    iterator = iter(loader)
    next(iterator)
    state, rest = loader.state_dict(), numbers(iterator)
    loader = opened()
    loader.load_state_dict(state)
    twin = clone(loader)

    assert state == twin.state_dict()
    assert rest == numbers(twin)


@pytest.mark.thorough
def test_copy_of_a_loader_with_live_workers():
    """
    A loader with running persistent workers refuses to be pickled; a shallow copy shares them.
    """

    def scenario(loader_class):
        loader = loader_class(range(8), persistent_workers=True, **IN_TWO_WORKERS)
        first = numbers(loader)
        twin = copy.copy(loader)
        shared = twin._iterator is loader._iterator
        refusal = attempt(lambda: pickle.dumps(loader)).kind
        return first, shared, refusal, numbers(twin), numbers(loader)

    alike(scenario)


# Building again


def test_every_parameter_is_an_attribute(loader_class, build):
    """Every parameter can be read back under its own name; torch keeps all but `shuffle`."""
    loader = build()
    names = inspect.signature(loader_class.__init__).parameters.keys()

    assert {"self", "shuffle"} == {name for name in names if not hasattr(loader, name)}


def test_rebuilt_from_attributes(build):
    """A loader made anew from attributes takes another sampler and keeps the rest."""
    loader = build(drop_last=True, timeout=7, persistent_workers=True, prefetch_factor=3)

    twin = rebuilt(loader, sampler=[5, 4, 3, 2, 1])

    assert [[5, 4], [3, 2]] == numbers(twin)
    assert (7, True, 3) == (twin.timeout, twin.persistent_workers, twin.prefetch_factor)
    assert loader.multiprocessing_context is twin.multiprocessing_context
