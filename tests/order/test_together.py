"""Which options go together: each contradiction has one message, wherever the options are given."""

import copy
import pickle
import warnings

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import shmloader
from shmloader import DataLoader
from shmloader.trainer import together
from shmloader.trainer.options import Options
from tests.order.test_seeds import COUNT, Drawing, Stream


class Saved(Drawing):
    """A dataset that can be saved."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


REFUSED = [
    (
        Saved(),
        {"fetch_threads": "auto", "resumable": True, "seed_by": "batch"},
        r"Saved has state_dict\(\)",
    ),
    (Drawing(), {"fetch_threads": 2, "restarts": 1}, 'needs seed_by="batch"'),
    (Drawing(), {"fetch_threads": "auto", "restarts": 1}, 'needs seed_by="batch"'),
    (
        Drawing(),
        {"fetch_threads": 2, "worker_bytes": 1 << 20},
        "worker_bytes=1048576 needs seed_by",
    ),
    (Stream(), {"worker_bytes": 1 << 20}, "Stream is iterable-style"),
    (Stream(), {"assignment": "dynamic"}, "Stream is iterable-style"),
    (Stream(), {"fetch_threads": 1}, "Stream is iterable-style"),
    (Stream(), {"fetch_threads": "auto"}, "fetch_threads='auto' is for map-style"),
]
OUT_OF_RANGE = [
    ({"assignment": "stealing"}, ValueError, "'cycle' or 'dynamic', but got 'stealing'"),
    ({"assignment": None}, TypeError, "assignment should be a str"),
    ({"seed_by": "sample"}, ValueError, "'worker' or 'batch', but got 'sample'"),
    ({"seed_by": 3}, TypeError, "seed_by should be a str"),
    ({"worker_bytes": 0}, ValueError, "worker_bytes should be at least 1, but got 0"),
    ({"worker_bytes": 1.5}, TypeError, "worker_bytes should be an int or None, but got 1.5"),
    ({"fetch_threads": -1}, ValueError, "at least 0, but got -1"),
    ({"fetch_threads": 5000}, ValueError, "at most 4096, but got 5000"),
    ({"fetch_threads": "many"}, TypeError, "an int or \"auto\", but got 'many'"),
    ({"fetch_threads": True}, TypeError, "but got True"),
    ({"fetch_threads": 2.0}, TypeError, "but got 2.0"),
    ({"overlap_epochs": "no"}, TypeError, "overlap_epochs should be a bool, but got 'no'"),
    ({"device": "coda"}, ValueError, 'should be such as "cuda" or "cuda:1", but got \'coda\''),
    ({"device": "meta"}, ValueError, "but got 'meta'"),
    ({"device": 0}, TypeError, "a str, a torch.device or None, but got 0"),
    ({"prefetch_to_device": -1}, ValueError, "at least 0, but got -1"),
    ({"prefetch_to_device": 1.5}, TypeError, "prefetch_to_device should be an int"),
    ({"device_transform": "cast"}, TypeError, "a callable or None, but got 'cast'"),
    ({"device_transform": len}, ValueError, "pass device= too"),
]


class OfTorch(torch.utils.data.DataLoader):
    """A user's subclass."""


@pytest.mark.parametrize(("dataset", "options", "words"), REFUSED)
def test_contradictions_are_refused(dataset, options, words):
    """At once, by each way to a loader."""
    with pytest.raises(ValueError, match=words):
        DataLoader(dataset, num_workers=2, **options)
    with pytest.raises(ValueError, match=words):
        shmloader.wrap(torch.utils.data.DataLoader(dataset, num_workers=2), **options)
    made = type(shmloader.wrap(OfTorch(dataset, num_workers=2)))
    with pytest.raises(ValueError, match=words):
        made(dataset, num_workers=2, **options)


@pytest.mark.parametrize(("dataset", "options", "words"), REFUSED)
def test_contradictions_that_come_later_are_refused(dataset, options, words):
    """Options are attributes, and are checked again when an epoch begins."""
    loader = DataLoader(dataset, num_workers=2)
    for name, value in options.items():
        setattr(loader, name, value)
    with pytest.raises(ValueError, match=words):
        iter(loader)


@pytest.mark.parametrize(("dataset", "options", "_"), REFUSED)
def test_without_workers_all_go_together(dataset, options, _):
    """The rules are about workers."""
    loader = DataLoader(dataset, **{**options, "seed_by": "batch"})

    assert COUNT == len(list(loader))


@pytest.mark.parametrize(("options", "kind", "words"), OUT_OF_RANGE)
def test_options_out_of_range(options, kind, words):
    """The message names the option, what it may be, and what it was."""
    with pytest.raises(kind, match=words):
        DataLoader(Drawing(), **options)
    with pytest.raises(kind, match=words):
        shmloader.install(**options)
    assert not shmloader.serving.is_installed()


@pytest.mark.parametrize("workers", [0, 2])
def test_two_ways_to_a_device_are_refused(workers):
    """With workers and without, by each way to a loader, and when an epoch begins."""
    words = 'pin_memory=True and device="cuda:1" are two ways'
    given = {"num_workers": workers, "pin_memory": True}
    with pytest.raises(ValueError, match=words):
        DataLoader(Drawing(), device=torch.device("cuda", 1), **given)
    with pytest.raises(ValueError, match=words):
        shmloader.wrap(torch.utils.data.DataLoader(Drawing(), **given), device="cuda:1")
    loader = DataLoader(Drawing(), device="cuda:1", num_workers=workers)
    loader.pin_memory = True
    with pytest.raises(ValueError, match=words):
        iter(loader)


class WithDevice(torch.utils.data.DataLoader):
    """A user's subclass that has a device for itself, as many have."""

    def __init__(self, *arguments, **options):
        self.device = "early"
        super().__init__(*arguments, **options)
        self.target, self.device = self.device, torch.device("meta")


class OursWithDevice(WithDevice, DataLoader):
    """The same, derived from ours."""


def test_a_subclass_may_have_a_device_of_its_own():
    """It is no option, is left as it is, and an option that is given is kept apart from it."""
    theirs = WithDevice(Drawing(), num_workers=2, pin_memory=True)
    for loader in (OursWithDevice(Drawing(), pin_memory=True), shmloader.wrap(theirs)):
        assert (torch.device("meta"), "early") == (loader.device, loader.target)
        assert loader._options().device is None
        assert copy.copy(loader)._options().device is None
    theirs.pin_memory = False
    given = shmloader.wrap(theirs, device="cuda:1")
    assert torch.device("meta") == given.device
    assert (
        "cuda:1" == given._options().device == pickle.loads(pickle.dumps(given))._options().device
    )
    loader = DataLoader(Drawing(), device="cuda")
    loader.device = "cuda:1"
    assert "cuda:1" == loader._options().device


def test_install_leaves_the_device_out_where_batches_are_pinned():
    """A program's loaders are served as they are."""
    pinning = torch.utils.data.DataLoader(Drawing(), pin_memory=True)
    options = Options(device="cuda", device_transform=len)
    assert together.fitting(pinning, options).device is None
    assert together.fitting(pinning, options).device_transform is None
    assert "cuda" == together.fitting(OfTorch(Drawing()), options).device


@pytest.mark.parametrize("workers", [0, 1])
def test_options_that_come_out_of_range(workers):
    """A loader's attributes are read when it is iterated, also without workers."""
    loader = DataLoader(range(4), num_workers=workers)
    loader.seed_by = "bath"
    with pytest.raises(ValueError, match="'worker' or 'batch', but got 'bath'"):
        iter(loader)


def test_install_refuses_what_no_loader_could_have():
    """Options that contradict each other whatever the dataset."""
    with pytest.raises(ValueError, match='needs seed_by="batch"'):
        shmloader.install(fetch_threads=2, restarts=1)
    assert not shmloader.serving.is_installed()


class Numbers(Dataset):
    """Its indices."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return index


class Counting(IterableDataset):
    """The same as a stream."""

    def __iter__(self):
        return iter(range(COUNT))


def test_install_leaves_out_what_a_loader_cannot_have():
    """Streams of a program go on being served, without the options that are for requests."""
    shmloader.install(assignment="dynamic", fetch_threads=2)
    try:
        for dataset in (Numbers(), Counting()):
            loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1)
            assert list(range(COUNT)) == [int(number) for number in loader]
            assert COUNT == shmloader.stats(loader).batches
    finally:
        shmloader.uninstall()


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"assignment": "dynamic", "restarts": 1}, True),
        ({"assignment": "dynamic", "restarts": 1, "seed_by": "batch"}, False),
        ({"assignment": "dynamic"}, False),
        ({"restarts": 1}, False),
        ({"assignment": "dynamic", "restarts": 1, "num_workers": 0}, False),
    ],
)
def test_draws_that_a_restart_would_change(options, warned):
    """Who heals, with draws by whichever worker is free, is told so when the loader is made."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DataLoader(Drawing(), **{"num_workers": 2, **options})
    texts = [str(each.message) for each in caught]

    assert warned == any('pass seed_by="batch"' in text for text in texts)
    assert all(each.filename == __file__ for each in caught)


def test_threads_are_left_out_where_a_dataset_is_saved():
    """Where options are for all loaders, and in what is advised."""
    options = Options(fetch_threads=2, resumable=True, seed_by="batch")
    plain = torch.utils.data.DataLoader(Drawing())
    saved = torch.utils.data.DataLoader(Saved())

    assert 2 == together.fitting(plain, options).fetch_threads
    assert 0 == together.fitting(saved, options).fetch_threads
    without = Options(resumable=True, seed_by="batch")
    assert together.may_have_threads(plain, without)
    assert not together.may_have_threads(saved, without)
