"""What a person types at a loader: repr, len, a progress bar, dir, help, the signature."""

import inspect
import pydoc
import types

import numpy
import pytest
import torch
import torch.utils.data
from torch.utils.data import RandomSampler, TensorDataset

import shmloader
from shmloader import DataLoader, Device
from shmloader.options.options import OPTIONS
from tests.conformance.made import Touchy

TENSORS = TensorDataset(torch.zeros(6, 2))


class Untouched(Touchy):
    """A dataset of which nothing may be called, as when its length is a query that takes long."""

    def __getattr__(self, name):
        raise AssertionError(f"asked for {name}")


def pad(samples):
    """A collate function with a name."""
    return samples


class Trays(DataLoader):
    """A user's subclass of ours."""


class Named(torch.utils.data.DataLoader):
    """A user's subclass of torch's, which says itself what it is."""

    def __repr__(self):
        return f"Named({self.batch_size})"


def inside(loader):
    """Returns what stands between the parentheses of a loader's line."""
    text = repr(loader)
    assert text.startswith("shmloader.DataLoader(")
    assert text.endswith(")")
    return text.removeprefix("shmloader.DataLoader(").removesuffix(")")


@pytest.mark.parametrize(
    ("dataset", "options", "expected"),
    [
        (TENSORS, {}, "TensorDataset, batch_size=1, num_workers=0"),
        ([1, 2], {"batch_size": 2}, "list of 2, batch_size=2, num_workers=0"),
        (
            range(9),
            {"batch_sampler": [[1], [2]]},
            "range of 9, batch_size=None, batch_sampler=list of 2, num_workers=0",
        ),
        (
            TENSORS,
            {"shuffle": True, "drop_last": True, "timeout": 1.5, "num_workers": 2, "slots": 9},
            "TensorDataset, batch_size=1, sampler=RandomSampler, num_workers=2, drop_last=True, "
            "timeout=1.5, slots=9",
        ),
        (
            TENSORS,
            {"sampler": RandomSampler(TENSORS, replacement=True), "collate_fn": pad},
            "TensorDataset, batch_size=1, sampler=RandomSampler, num_workers=0, collate_fn=pad",
        ),
        (
            TENSORS,
            {
                "num_workers": 1,
                "multiprocessing_context": "spawn",
                "prefetch_factor": 2,
                "keep_pages": False,
                "restarts": numpy.int64(3),
            },
            "TensorDataset, batch_size=1, num_workers=1, multiprocessing_context=SpawnContext, "
            "keep_pages=False, restarts=3",
        ),
        (
            [1],
            {"device": Device("cuda", prefetch=1, transform=pad)},
            "list of 1, batch_size=1, num_workers=0, device='cuda'",
        ),
    ],
)
def test_repr_shows_what_differs(dataset, options, expected):
    """The line has the dataset, the batch size, the workers, and options that are not as usual."""
    assert expected == inside(DataLoader(dataset, **options))


def test_repr_runs_no_code_of_the_dataset():
    """Neither the length nor any attribute of a user's dataset is asked for."""
    loader = DataLoader(Untouched(AssertionError), batch_size=4, sampler=[0], num_workers=2)

    assert "Untouched, batch_size=4, sampler=list of 1, num_workers=2" == inside(loader)


def test_repr_without_attributes():
    """A loader whose __init__ has not run, or has raised, can still be shown by a traceback."""
    loader = object.__new__(DataLoader)
    assert "" == inside(loader)
    loader.dataset = TENSORS
    assert "TensorDataset" == inside(loader)
    loader.sampler = loader.batch_size = loader.num_workers = types.SimpleNamespace()
    assert inside(loader).startswith("TensorDataset, batch_size=SimpleNamespace")


def test_repr_names_the_class():
    """Subclasses and wrapped loaders are shown by their own names."""

    class Mine(torch.utils.data.DataLoader):
        pass

    assert "Trays(list of 1, batch_size=1, num_workers=0)" == repr(Trays([1]))
    wrapped = shmloader.wrap(Mine([1, 2], num_workers=1), slots=3)
    assert "Mine(list of 2, batch_size=1, num_workers=1, slots=3)" == repr(wrapped)
    assert "list of 1, batch_size=1, num_workers=0" == inside(
        shmloader.wrap(torch.utils.data.DataLoader([1]))
    )


def test_a_class_that_says_itself_what_it_is():
    """The repr of a user's class goes before ours, wrapped or derived; torch has none."""

    class Derived(Named, DataLoader):
        pass

    assert "Named(3)" == repr(shmloader.wrap(Named([1], batch_size=3)))
    assert "Named(4)" == repr(Derived([1], batch_size=4))
    assert torch.utils.data.DataLoader.__repr__ is object.__repr__


def test_signature_is_torchs_and_the_options():
    """Completion shows torch's parameters with their defaults, then ours, each with a type."""
    theirs = inspect.signature(torch.utils.data.DataLoader).parameters
    ours = inspect.signature(DataLoader).parameters

    assert [*theirs, *OPTIONS] == list(ours)
    assert {name: theirs[name].default for name in theirs} == {
        name: ours[name].default for name in theirs
    }
    assert [theirs[name].kind for name in theirs] == [ours[name].kind for name in theirs]
    assert {inspect.Parameter.KEYWORD_ONLY} == {ours[name].kind for name in OPTIONS}
    empty = inspect.Parameter.empty
    assert [] == [name for name in ours if ours[name].annotation is empty]
    assert [] == [name for name in OPTIONS if ours[name].default is empty]


def test_signature_of_wrap_is_the_options():
    """wrap() shows the same options, defaults and types as the class."""
    wrapped = dict(inspect.signature(shmloader.wrap).parameters)
    ours = inspect.signature(DataLoader).parameters

    assert wrapped.pop("loader").annotation is not inspect.Parameter.empty
    assert None is wrapped.pop("num_workers").default  # the loader's own number stays
    assert {name: ours[name] for name in OPTIONS} == wrapped


def documented():
    """List the public names, and the methods that our public classes define."""
    for name in shmloader.__all__:
        thing = getattr(shmloader, name)
        yield name, thing
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            if not member.startswith("_") and inspect.isroutine(value):
                yield f"{name}.{member}", value


@pytest.mark.parametrize(
    ("name", "thing"), [pytest.param(*each, id=each[0]) for each in documented()]
)
def test_every_public_name_is_documented(name, thing):
    """Hovering over a name shows a sentence of ours, and so does help()."""
    text = inspect.getdoc(thing)
    shown = pydoc.render_doc(thing, renderer=pydoc.plaintext)

    assert text
    assert text.splitlines()[0].rstrip(".,:") in shown
    assert text != inspect.getdoc(torch.utils.data.DataLoader)
