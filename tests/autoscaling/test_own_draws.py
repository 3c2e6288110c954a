"""The warning of what makes random numbers depend on the worker, where workers come and go."""

import functools
import random
import types
import warnings

import numpy
import pytest
import torch
import torch.utils.data
from torch.utils.data import ConcatDataset, StackDataset, Subset

from shmloader import DataLoader, errors
from shmloader.trainer import own_draws
from tests.helpers.datasets import Numbered

COUNT = 60


class WithGenerator(Numbered):
    """It has a generator of its own."""

    def __init__(self):
        super().__init__(COUNT)
        self.noise = random.Random(3)


def by_id(worker):
    """Seed by the worker."""
    random.seed(worker)


def by_info(worker):
    """Seed by the worker, as documents of numpy say."""
    info = torch.utils.data.get_worker_info()
    info.dataset.noise = numpy.random.default_rng(info.seed)


def by_rank(worker, rank):
    """Seed by the worker, as frameworks do."""
    random.seed(100 * rank + worker)


def by_rank_first(rank, worker):
    """Ignore the worker, and not what is given before."""
    random.seed(rank)


class Seeds:
    """Functions of an object."""

    def seed(self, worker):
        random.seed(worker)

    def ignore(self, worker):
        assert self


def by_nothing(worker):
    """Ignore the worker."""


@pytest.mark.core(first=1)
@pytest.mark.parametrize(
    ("dataset", "function", "said"),
    [
        (WithGenerator(), None, "attribute noise is a generator of its own"),
        (Numbered(COUNT), by_id, "worker_init_fn uses the worker's id"),
        (Numbered(COUNT), by_info, "worker_init_fn uses the worker's id"),
        (Numbered(COUNT), by_nothing, None),
        (Subset(WithGenerator(), [1]), None, "attribute noise is a generator of its own"),
        (ConcatDataset([Numbered(3), WithGenerator()]), None, "attribute noise is a generator"),
        (StackDataset(a=WithGenerator()), None, "attribute noise is a generator"),
        (Numbered(COUNT), functools.partial(by_rank, rank=1), "uses the worker's id"),
        (Numbered(COUNT), functools.partial(by_rank_first, 1), None),
        (Numbered(COUNT), Seeds().seed, "uses the worker's id"),
        (Numbered(COUNT), Seeds().ignore, None),
    ],
)
def test_what_draws_by_worker_is_told_once(dataset, function, said, monkeypatch):
    """Where workers come and go, and not where their number is fixed."""
    monkeypatch.setattr(errors, "_warned", set())
    with warnings.catch_warnings(record=True, action="always") as told:
        for workers in (2, "auto", "auto"):
            with DataLoader(dataset, num_workers=workers, worker_init_fn=function) as loader:
                next(iter(loader))
    found = [
        str(each.message) for each in told if "may differ from run to run" in str(each.message)
    ]
    assert ([] if said is None else [True]) == [said in text for text in found]


class Closed(type):
    """A class of classes that answers nothing."""

    def __getattribute__(cls, name):
        raise LookupError(name)


class Touchy(metaclass=Closed):
    """It answers nothing either."""

    def __getattribute__(self, name):
        raise LookupError(name)

    def __eq__(self, other):
        raise LookupError("equal")

    def __hash__(self):
        raise LookupError("hash")

    def __call__(self, worker):
        raise LookupError("call")


def test_no_code_of_users_runs_to_find_what_draws_by_worker():
    """Not that of an attribute, of a callable or of their classes."""
    dataset = Numbered(COUNT)
    dataset.dataset, dataset.datasets, dataset.kind = Touchy(), [Touchy()], Touchy
    asked = types.SimpleNamespace(dataset=dataset, worker_init_fn=Touchy(), collate_fn=Touchy)
    assert "" == own_draws.describe(asked)
