"""Which options go together: each contradiction has one message, wherever the options are given."""

import copy
import inspect
import pickle
import re
import warnings

import numpy
import pytest
import torch

import shmloader
from shmloader import DataLoader, Device, UnusedOptionWarning
from shmloader.options import rules
from shmloader.options.options import OPTIONS, Options
from tests.helpers.datasets import Iterated
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
        {"fetch_threads": 8, "resumable": True, "seed_by": "batch"},
        r"Saved has state_dict\(\)",
    ),
    (
        Saved(),
        {"fetch_threads": 2, "restarts": 3, "seed_by": "batch"},
        r"restarts=3 cannot save the state .* Saved has state_dict\(\)",
    ),
    (
        Saved(),
        {"fetch_threads": 2, "worker_bytes": 1 << 20, "seed_by": "batch"},
        r"worker_bytes=1048576 cannot save the state .* Saved has state_dict\(\)",
    ),
    (Drawing(), {"fetch_threads": 2, "restarts": 1}, 'needs seed_by="batch"'),
    (
        Drawing(),
        {"fetch_threads": 2, "worker_bytes": 1 << 20},
        "worker_bytes=1048576 needs seed_by",
    ),
    (Stream(), {"worker_bytes": 1 << 20}, "Stream is iterable-style"),
    (Stream(), {"assignment": "dynamic"}, "Stream is iterable-style"),
    (Stream(), {"fetch_threads": 1}, "Stream is iterable-style"),
]
NO_INTS = (1.5, "3", True, numpy.float64(8), numpy.bool_(True))
MOST = f"should be at most {1 << 62}, but got {1 << 64}"
OUT_OF_RANGE = [
    *(
        (
            {name: value},
            TypeError,
            f"{name} should be an int or None, but got {re.escape(repr(value))}",
        )
        for name in ("slots", "slot_bytes", "ring_bytes")
        for value in NO_INTS
    ),
    ({"slots": 0}, ValueError, "slots should be at least 1, but got 0"),
    ({"slots": 1 << 30}, ValueError, "slots should be at most"),
    ({"slot_bytes": -1}, ValueError, "slot_bytes should be at least 1, but got -1"),
    ({"ring_bytes": 100}, ValueError, "ring_bytes should be at least 65536, but got 100"),
    ({"ring_bytes": 1 << 64}, ValueError, f"ring_bytes {MOST}"),
    ({"slot_bytes": 1 << 64}, ValueError, f"slot_bytes {MOST}"),
    (
        {"slot_bytes": 1 << 20, "ring_bytes": 1 << 19},
        ValueError,
        "raise ring_bytes to at least 1048576",
    ),
    *(({"nice": each}, ValueError, "^nice should be ") for each in (-1, 20)),
    ({"restarts": -1}, ValueError, "restarts should be"),
    *(({"restarts": each}, TypeError, "restarts should be") for each in (True, "3", 1.5, None)),
    *(({"nice": each}, TypeError, "^nice should be ") for each in (True, "5", None)),
    ({"assignment": "stealing"}, ValueError, "'cycle' or 'dynamic', but got 'stealing'"),
    ({"assignment": None}, TypeError, "assignment should be a str"),
    ({"seed_by": "sample"}, ValueError, "'worker' or 'batch', but got 'sample'"),
    ({"seed_by": 3}, TypeError, "seed_by should be a str"),
    ({"max_workers": 0}, ValueError, "max_workers should be at least 1, but got 0"),
    ({"min_workers": 3, "max_workers": 2}, ValueError, "min_workers=3 exceeds max_workers=2"),
    ({"worker_bytes": 0}, ValueError, "worker_bytes should be at least 1, but got 0"),
    ({"worker_bytes": 1.5}, TypeError, "worker_bytes should be an int or None, but got 1.5"),
    ({"fetch_threads": -1}, ValueError, "at least 0, but got -1"),
    ({"fetch_threads": 5000}, ValueError, "at most 4096, but got 5000"),
    ({"fetch_threads": "auto"}, TypeError, r"such as 8 \(shmloader.tune\(\) .*, but got 'auto'"),
    ({"fetch_threads": True}, TypeError, "but got True"),
    ({"fetch_threads": 2.0}, TypeError, "but got 2.0"),
    ({"resumable": "no"}, TypeError, "resumable should be a bool, but got 'no'"),
    ({"keep_pages": "no"}, TypeError, "keep_pages should be a bool, but got 'no'"),
    ({"resumable": 1}, TypeError, "resumable should be a bool, but got 1"),
    ({"slot_bytes": 10**18}, ValueError, "slot_bytes of 1000000000000000000 exceeds the memory"),
    ({"device": "coda"}, ValueError, 'should be such as "cuda" or "cuda:1", but got \'coda\''),
    ({"device": "meta"}, ValueError, "but got 'meta'"),
    ({"device": 0}, TypeError, "a str, a torch.device or a shmloader.Device, but got 0"),
    *(({"preload": each}, TypeError, "preload should") for each in ("json", 7, [7])),
    *(({"preload": each}, ValueError, "preload should") for each in (["a b"], [""])),
]
DEVICES_OUT_OF_RANGE = [
    ({"name": "coda"}, ValueError, 'should be such as "cuda" or "cuda:1", but got \'coda\''),
    ({"name": None}, TypeError, "a str, a torch.device or a shmloader.Device, but got None"),
    ({"prefetch": -1}, ValueError, "prefetch should be at least 0, but got -1"),
    ({"prefetch": 1025}, ValueError, "prefetch should be at most 1024, but got 1025"),
    ({"prefetch": 1.5}, TypeError, "prefetch should be an int, but got 1.5"),
    ({"transform": "cast"}, TypeError, "transform should be a callable or None, but got 'cast'"),
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


@pytest.mark.filterwarnings("ignore::shmloader.UnusedOptionWarning")
@pytest.mark.parametrize(("dataset", "options", "_"), REFUSED)
def test_without_workers_all_go_together(dataset, options, _):
    """The rules are about workers."""
    loader = DataLoader(dataset, **{**options, "seed_by": "batch"})

    assert COUNT == len(list(loader))


@pytest.mark.parametrize(("dataset", "options", "_"), REFUSED)
def test_what_fits_is_accepted(dataset, options, _):
    """What is left of options for all loaders is what each of them accepts."""
    loader = torch.utils.data.DataLoader(dataset, num_workers=2)
    fitting = rules.fitting(loader, Options(**options))

    rules.check(loader, fitting)
    assert fitting != Options(**options)


@pytest.mark.parametrize(("options", "kind", "words"), OUT_OF_RANGE)
def test_options_out_of_range(options, kind, words):
    """The message names the option, what it may be, and what it was."""
    with pytest.raises(kind, match=words):
        DataLoader(Drawing(), **options)
    with pytest.raises(kind, match=words):
        shmloader.wrap(torch.utils.data.DataLoader(Drawing()), **options)
    with pytest.raises(kind, match=words):
        shmloader.install(**options)
    assert not shmloader.interception.is_installed()


@pytest.mark.parametrize(("given", "kind", "words"), DEVICES_OUT_OF_RANGE)
def test_devices_out_of_range(given, kind, words):
    """Said when the device is made, before any loader has it."""
    with pytest.raises(kind, match=words):
        Device(**{"name": "cuda", **given})


def test_a_device_stands_for_its_name():
    """A text, a torch.device and a Device of the same name are the same option."""
    named = ["cuda:1", torch.device("cuda", 1), Device(torch.device("cuda:1"))]

    assert [Device("cuda:1")] * 3 == [DataLoader([], device=each).device for each in named]


@pytest.mark.parametrize("workers", [0, 2])
def test_two_ways_to_a_device_are_refused(workers):
    """With workers and without, by each way to a loader, and when an epoch begins."""
    words = r"device=Device\(name='cuda:1', .*\) and pin_memory=True both deliver to the device"
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
    again = pickle.loads(pickle.dumps(given))
    assert Device("cuda:1") == given._options().device == again._options().device
    loader = DataLoader(Drawing(), device="cuda")
    loader.device = Device("cuda:1")
    assert Device("cuda:1") == loader._options().device
    assert shmloader.wrap(loader).device is None


def test_install_leaves_the_device_out_where_batches_are_pinned():
    """A program's loaders are served as they are."""
    pinning = torch.utils.data.DataLoader(Drawing(), pin_memory=True)
    options = Options(device=Device("cuda", transform=len))
    assert rules.fitting(pinning, options).device is None
    assert Device("cuda", transform=len) == rules.fitting(OfTorch(Drawing()), options).device


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
    assert not shmloader.interception.is_installed()


@pytest.mark.thorough
def test_install_leaves_out_what_a_loader_cannot_have():
    """Streams of a program go on being served, without the options that are for requests."""
    shmloader.install(assignment="dynamic", fetch_threads=2)
    try:
        for dataset in (range(COUNT), Iterated(lambda: range(COUNT))):
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
    with warnings.catch_warnings(record=True, action="always") as caught:
        DataLoader(Drawing(), **{"num_workers": 2, **options})
    texts = [str(each.message) for each in caught]

    assert warned == any('pass seed_by="batch"' in text for text in texts)
    assert all(each.filename == __file__ for each in caught)


@pytest.mark.parametrize("asked", [{"resumable": True}, {"restarts": 1}, {"worker_bytes": 1}])
def test_threads_are_left_out_where_a_dataset_is_saved(asked):
    """Where options are for all loaders, and in what is advised."""
    options = Options(fetch_threads=2, seed_by="batch", **asked)
    plain = torch.utils.data.DataLoader(Drawing(), num_workers=1)
    saved = torch.utils.data.DataLoader(Saved(), num_workers=1)

    assert 2 == rules.fitting(plain, options).fetch_threads
    assert 0 == rules.fitting(saved, options).fetch_threads
    without = Options(seed_by="batch", **asked)
    assert rules.may_have_threads(plain, without)
    assert not rules.may_have_threads(saved, without)


# A value of each option that is not its default, and what all of them need together.
GIVEN = {
    "slots": 8,
    "slot_bytes": 4096,
    "ring_bytes": 1 << 20,
    "keep_pages": False,
    "restarts": 1,
    "assignment": "dynamic",
    "seed_by": "batch",
    "min_workers": 1,
    "max_workers": 4,
    "fetch_threads": 2,
    "nice": 5,
    "worker_bytes": 1 << 20,
    "resumable": True,
    "device": "cuda",
    "preload": ("json",),
}
SERVED = {
    "num_workers": 2,
    "persistent_workers": True,
    "device": "cuda",
    "multiprocessing_context": "spawn",
}
NEEDY = [name for name, needs in rules.NEEDS.items() if needs]


def unused(make):
    """Make a loader, or several; returns what was said of options without effect."""
    with warnings.catch_warnings(record=True, action="default") as caught:
        make()
    caught = [each for each in caught if each.category is UnusedOptionWarning]
    assert {__file__} >= {each.filename for each in caught}
    return [str(each.message) for each in caught]


def test_each_option_says_what_it_needs():
    """Each has a value in the tests below, and needs workers unless the table of needs differs."""
    assert set(OPTIONS) == set(GIVEN), "GIVEN has a value of each option that is not its default"
    assert {"seed_by", "device"} == set(OPTIONS) - set(NEEDY), (
        "these alone act without workers too: rules.NEEDS and this test name the same"
    )
    assert set(OPTIONS) == set(rules.NEEDS), "a row of rules.NEEDS is of no option"


def test_arguments_are_the_record():
    """Type checkers know the options that there are, by the types of the record."""
    types = {name: each.type for name, each in OPTIONS.items()}
    types["device"] = "Device | str | torch.device | None"
    types["preload"] = "Sequence[str] | None"

    assert types == {name: each.annotation for name, each in signature_of(DataLoader)}


def signature_of(function):
    """List the names and parameters of the options in a signature."""
    parameters = inspect.signature(function).parameters.items()
    return [(name, each) for name, each in parameters if name in OPTIONS]


def test_unknown_options_are_refused():
    """With Python's words."""
    theirs = torch.utils.data.DataLoader(range(6))
    ways = {
        "DataLoader.__init__": lambda **given: DataLoader(range(6), **given),
        "wrap": lambda **given: shmloader.wrap(theirs, **given),
        "install": shmloader.install,
    }
    for function, call in ways.items():
        with pytest.raises(TypeError) as caught:
            call(slot=3)
        assert f"{function}() got an unexpected keyword argument 'slot'" == str(caught.value)


@pytest.mark.parametrize("name", NEEDY)
def test_an_option_without_workers_is_said(name):
    """By each way to a loader, once, with the option and the reason; the batches are the same."""
    given = {name: GIVEN[name]}
    theirs = torch.utils.data.DataLoader(range(6), 2)
    loaders = []
    said = unused(lambda: loaders.append(DataLoader(range(6), 2, **given)))
    again = unused(lambda: loaders.append(shmloader.wrap(theirs, **given)))
    kind = type(shmloader.wrap(OfTorch(range(6))))
    derived = unused(lambda: loaders.append(kind(range(6), 2, **given)))

    assert said == again == derived
    assert [f"{name}={GIVEN[name]!r}; with num_workers=0"] == [
        each.removeprefix("without effect: ").partition(" there")[0] for each in said
    ]
    expected = [batch.tolist() for batch in theirs]
    for loader in loaders:
        assert expected == [batch.tolist() for batch in loader]


@pytest.mark.parametrize("name", GIVEN)
def test_an_option_with_an_effect_is_not_spoken_of(name):
    """With all that it needs, nothing is said."""
    given = {**SERVED, name: GIVEN[name]}
    if name == "min_workers":
        given["max_workers"] = 4
    assert [] == unused(lambda: DataLoader(range(6), **given))


def test_options_without_effect_are_one_line():
    """All that lack the same are named together, and a line that makes loaders says it once."""
    said = unused(lambda: [DataLoader(range(6), slots=8, restarts=1) for _ in range(3)])

    assert 1 == len(said)
    assert "slots=8, restarts=1; with num_workers=0" in said[0]


def test_options_for_all_loaders_are_not_spoken_of():
    """What is given to install() is for the loaders that can use it."""
    plain = [torch.utils.data.DataLoader(range(6), num_workers=workers) for workers in (0, 1)]

    def serve():
        shmloader.install(slots=8, restarts=1)
        try:
            assert [6, 6] == [len(list(loader)) for loader in plain]
            assert 6 == shmloader.stats(plain[1]).batches
        finally:
            shmloader.uninstall()

    assert [] == unused(serve)


@pytest.mark.thorough
def test_any_depth_goes_with_few_slots():
    """A request waits for one."""
    loader = DataLoader(range(6), num_workers=2, prefetch_factor=600_000, slots=4)

    assert list(range(6)) == [int(batch) for batch in loader]


@pytest.mark.parametrize(
    "dataset", [Drawing(), Saved(), Stream()], ids=lambda each: type(each).__name__
)
@pytest.mark.parametrize("seed_by", ["worker", "batch"])
def test_what_may_be_advised_is_accepted(dataset, seed_by):
    """A report may advise just those options that the constructor takes beside the others."""
    given = {"num_workers": 2, "persistent_workers": True, "seed_by": seed_by}
    others = {"restarts": 1, "worker_bytes": 1 << 20, "resumable": True}
    beside = [{}, *({name: value} for name, value in others.items())]
    for options in ({**given, **each} for each in beside if accepts(dataset, {**given, **each})):
        loader = DataLoader(dataset, **options)
        advised = (
            rules.may_have_threads(loader, loader._options()),
            rules.may_be_dynamic(loader, loader._options()),
        )
        accepted = (
            accepts(dataset, {**options, "fetch_threads": 8}),
            accepts(dataset, {**options, "assignment": "dynamic"}),
        )
        assert accepted == advised, options


def accepts(dataset, options):
    """Returns True if the constructor takes these options together."""
    with warnings.catch_warnings(action="ignore"):
        try:
            DataLoader(dataset, **options)
        except ValueError:
            return False
    return True
