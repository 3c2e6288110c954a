"""
Code of users' objects that runs in our bookkeeping: tests/conformance/users_code.md lists it.

The list is held against the sources: each place has a row, and each row a place. The walk raises at
the places that no other test goes to.
"""

import ast
import functools
import logging
import math
import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Dataset

import shmloader
from shmloader import DataLoader, Device, Pool, log
from shmloader.errors import said
from shmloader.publishing.publisher import Publisher
from shmloader.transport.remote_error import RemoteError
from tests.conformance import made
from tests.conformance.kinds import KINDS
from tests.conformance.sources import LONGEST_WAIT_S, Numbered, identity, outcome

TESTS = Path(__file__).resolve().parents[1]
PACKAGE = TESTS.parent / "shmloader"
PAGE = TESTS / "conformance" / "users_code.md"
BELONGS, CANNOT = {"its batch", "its call"}, {"words", "none"}

# The forms of a place: calls by these names, also by way of `partial`, `map` or `asked`.
ROOMS = (
    *("transport", "pinning", "pool", "core", "order", "worker", "publishing", "trainer"),
    *("device", "data"),
)
LOOSE = ("transport/delivery.py", "samples/skip_errors.py", "errors.py", "log.py")
PICKLES = {"pickle", "pickling", "ForkingPickler"}
FORMS = {
    *("loads", "dumps", "load", "dump", "deepcopy", "__reduce_ex__", "__setstate__", "reraise"),
    *("state_dict", "load_state_dict", "state_of", "set_epoch", "apply_random_seed"),
    *("repr", "log", "shown", "said", "text_of", "add_note", "asked"),
    *("format_exception", "format_exception_only", "warn", "warn_aside", "warn_explicit"),
    *("next", "iter", "fetch", "function", "initializer", "worker_init_fn", "collate_fn"),
    *("Request", "transform", "transformed", "pin_memory", "set_result", "set_exception"),
}
NATIVE = re.compile(
    r"\b(pickle|pickling|ForkingPickler|marshal)\.(loads|dumps)\b|copy\.copy\(|\.__new__\(\*|"
    r"\b(next|mover|original|build|setter|failed|is_done)\(|\b(get|has)attr\(value|\.draw\(\)"
)
HEAD = re.compile(r"(?:    )?(?:cdef|cpdef|def)\b[^=(]*?(\w+)\s*\(")


def name_of(node):
    return getattr(node, "id", getattr(node, "attr", ""))


def is_form(node):
    name, of = name_of(node), name_of(getattr(node, "value", None))
    return name in FORMS and (name not in ("loads", "dumps") or of in PICKLES)


def runs(call):
    """Returns True if a call has one of the forms."""
    named = [call.func, *(call.args if name_of(call.func) in ("partial", "map", "asked") else [])]
    own = name_of(call.func) == "next" and isinstance(call.args[0], ast.GeneratorExp)
    return not own and any(map(is_form, named))


def places(node, where=""):
    """Yield the functions of a module that have a place, by their outermost names."""
    for child in ast.iter_child_nodes(node):
        inner = where or (child.name if isinstance(child, ast.FunctionDef) else "")
        if inner and isinstance(child, ast.Call) and runs(child):
            yield inner
        yield from places(child, inner)


def native_places(text):
    """Yield the same of a .pyx file."""
    where = ""
    for line in re.sub(r'"""[\s\S]*?"""', "", text).splitlines():
        head = HEAD.match(line)
        where = head[1] if head else where
        if where and not head and NATIVE.search(line.partition("#")[0]):
            yield where


def found():
    """Collect (file, function) of all places."""
    files = [path for room in ROOMS for path in (PACKAGE / room).rglob("*.py*")]
    collected = set()
    for path in [*files, *(PACKAGE / name for name in LOOSE)]:
        if path.suffix in (".py", ".pyx"):
            text = path.read_text()
            within = places(ast.parse(text)) if path.suffix == ".py" else native_places(text)
            collected |= {(str(path.relative_to(PACKAGE)), function) for function in within}
    return collected


def rows():
    """Yield the (file, function)s, the door and the tests of each row of the page."""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 4 and cells[0].startswith("`"):
            file, *functions = re.findall(r"`([^`]+)`", cells[0])
            tests = re.findall(r"`(test_\w+\.py)::(\w+)`", cells[3])
            yield [(file, function) for function in functions], cells[2], tests


@pytest.mark.thorough
def test_each_place_has_a_row():
    """A new place needs a row that says its door; a row whose place is gone goes too."""
    listed = [place for places, _, _ in rows() for place in places]
    assert len(listed) == len({*listed}) > 100
    assert found() - {*listed} == set(), (
        "code of users' objects may run here: say in tests/conformance/users_code.md to which "
        "batch or call its error belongs and which test shows it, or why it cannot run or raise"
    )
    assert {*listed} - found() == set(), (
        "tests/conformance/users_code.md lists places that are gone"
    )


def test_each_door_is_shown():
    """A row has one of the doors; if an error belongs to something, a test that exists shows it."""
    for listed, door, tests in rows():
        assert door in BELONGS | CANNOT, listed
        assert tests or door in CANNOT, listed
        for file, test in tests:
            texts = [path.read_text() for path in TESTS.rglob(file)]
            assert any(f"def {test}(" in text for text in texts), f"{file} has no {test}"


# The walk.

ERRORS = [ValueError, SystemExit, KeyboardInterrupt]
errors = pytest.mark.parametrize("error", ERRORS)


def fail(error):
    """Raise, and note which functions of ours led here, in whichever process."""
    frame = sys._getframe()
    with open(os.environ["REACHED"], "a") as file:
        while frame is not None:
            _, is_ours, path = frame.f_code.co_filename.partition(f"{PACKAGE}/")
            if is_ours:
                file.write(f"{path}: {frame.f_code.co_name}\n")
            frame = frame.f_back
    raise error


@pytest.fixture
def reached(tmp_path, monkeypatch):
    """Returns what says through which places errors went."""
    path = tmp_path / "reached"
    monkeypatch.setenv("REACHED", str(path))
    return lambda: {*path.read_text().splitlines()}


class Hostile(made.Raises):
    """An object that raises in one of its methods."""

    def raise_when(self, moment):
        if self.moment == moment:
            fail(self.error)

    def __eq__(self, other):
        self.raise_when("compared")
        return True

    __hash__ = None

    def __repr__(self):
        self.raise_when("shown")
        return "hostile"

    def pin_memory(self):
        self.raise_when("pinned")
        return self


class HostileError(Exception):
    """An error that raises wherever it is looked at."""

    error = ValueError

    def _raise(self, *_):
        fail(self.error)

    __cause__ = __context__ = __traceback__ = __notes__ = property(_raise, lambda *_: None)
    __str__ = __repr__ = _raise


class Rising(Exception):
    """An error that raises when it is made in one process."""

    error, pid = None, 0

    def __init__(self, *arguments):
        super().__init__(*arguments)
        if os.getpid() == self.pid:
            fail(self.error)


def hostile_error(error):
    HostileError.error = error
    raise HostileError


def rising():
    raise Rising


def one():
    return torch.ones(5000)


def is_one(value):
    return torch.is_tensor(value) and torch.equal(value, one())


def die_once(marker):
    made.end_this_process_once(marker)
    return one()


class Stateful(Numbered):
    """Its state raises where it is told to."""

    def __init__(self, moment, error, *makes):
        super().__init__(makes)
        self.moment, self.error = moment, error

    def state_dict(self):
        return fail(self.error) if self.moment == "state_dict" else Hostile(self.moment, self.error)

    def load_state_dict(self, state):
        state.raise_when("load_state_dict")


class ByKey(Dataset):
    """Has a tensor for each key; the process dies at the first one if there is a marker."""

    def __init__(self, marker=None):
        self.marker = marker

    def __getitem__(self, key):
        assert type(key) in (Hostile, int)
        return one() if self.marker is None else die_once(self.marker)


def loader_of(dataset, **options):
    options = {"batch_size": None, "collate_fn": identity, "num_workers": 1, **options}
    return DataLoader(dataset, timeout=LONGEST_WAIT_S, multiprocessing_context="fork", **options)


def first_of(make, error):
    """Open a loader whose first sample is made of an error, and whose second is whole."""
    return loader_of(Numbered([functools.partial(make, error), one]))


def first_rises(error):
    Rising.error, Rising.pid = error, os.getpid()
    return loader_of(Numbered([rising, one]))


def transforming(error):
    transform = lambda batch: fail(error) if batch == error else batch  # noqa: E731
    dataset = Numbered([lambda: error, one])
    return loader_of(dataset, device=Device("cpu", transform=transform))


def asking(moment, threads, error):
    return loader_of(ByKey(), sampler=[Hostile(moment, error), 0, 0], fetch_threads=threads)


# What opens a loader whose first batch is an error, and the place through which that goes.
FIRST = {
    "unpickled": (
        functools.partial(first_of, functools.partial(Hostile, "unpickled")),
        "transport/received.py: _decode",
    ),
    "its class raises": (first_rises, "transport/delivery.py: error_in"),
    "cannot be looked at": (functools.partial(first_of, hostile_error), "worker/worker.py: wrap"),
    "a transform": (transforming, "pinning/host_delivery.py: _through"),
    "an index is pickled": (
        functools.partial(asking, "pickled", 0),
        "transport/requests.py: _place",
    ),
    "an index is unpickled": (
        functools.partial(asking, "unpickled", 0),
        "worker/serve.py: serve",
    ),
    "one is unpickled for threads": (
        functools.partial(asking, "unpickled", 1),
        "worker/ahead.py: take",  # at once, or after a park
    ),
}


@pytest.mark.core(first=1)
@errors
@pytest.mark.parametrize("how", FIRST)
def test_an_error_belongs_to_its_batch(how, error, reached):
    """What an object raises is the first batch, counts as delivered, and the next one is whole."""
    open_loader, place = FIRST[how]
    loader = open_loader(error)
    batches = iter(loader)
    first = outcome(lambda: next(batches))
    # torch has a RuntimeError for an error that cannot be made, or be looked at.
    is_torchs = how == "cannot be looked at" or (how, error) == ("its class raises", ValueError)
    assert isinstance(first, type) and issubclass(first, RuntimeError if is_torchs else error)
    assert 1 == loader.state_dict()["low"]
    assert is_one(next(batches))
    assert place in reached()


class Signalling:
    """An object that sends a signal to the process that makes it again."""

    made = 0

    def __init__(self, number):
        self.number = number

    def __setstate__(self, state):
        Signalling.made += 1
        signal.raise_signal(state["number"])


def leave(*_):
    raise SystemExit


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_no_batchs_error(number, monkeypatch):
    """Ctrl-C, or what a handler raises, comes out of next() at once, and no batch counts."""
    monkeypatch.setattr(Signalling, "made", 0)
    loader = first_of(Signalling, number)
    batches = iter(loader)
    handler = signal.signal(signal.SIGTERM, leave)
    try:
        found = outcome(lambda: next(batches))
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit}[number] is found
    assert (1, 0) == (Signalling.made, loader.state_dict()["low"])
    assert is_one(next(batches))


@pytest.mark.core(first=1)
@errors
@pytest.mark.parametrize("moment, name", [("unpickled", "device"), ("pinned", "pinned by a copy")])
def test_an_error_comes_at_its_turn(moment, name, error, reached, monkeypatch):
    """Even if what raises was made, or copied, ahead of its turn."""
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    source = next(kind for kind in KINDS if kind.name == name).open()
    values = source.many([one, functools.partial(Hostile, moment, error), one])
    outcomes = [outcome(lambda: next(values)) for _ in range(3)]
    source.close()
    assert [True, error, True] == [is_one(outcomes[0]), outcomes[1], is_one(outcomes[2])]
    assert {"device/copies.py: start", "pinning/host_delivery.py: _pinned_by_torch"} & reached()


@errors
def test_an_error_that_cannot_be_looked_at_has_words(error, reached):
    """It is said, and sent to subscribers, by the name of its class."""
    with pytest.raises(HostileError) as raised:
        hostile_error(error)
    assert "HostileError" == said(raised.value)
    assert HostileError is type(RemoteError.of(raised.value).open())
    assert {"errors.py: said", "transport/remote_error.py: of"} < reached()


@errors
@pytest.mark.filterwarnings("ignore::shmloader.LeftOutWarning")
def test_an_error_that_cannot_be_looked_at_is_left_out(error, reached):
    """A tolerant dataset leaves out such a sample, whatever the error's accessors raise."""
    dataset = shmloader.tolerant(Numbered([functools.partial(hostile_error, error), one]))
    assert 1 == len(next(iter(DataLoader(dataset, batch_size=2))))
    assert "samples/skip_errors.py: _warn" in reached()


def test_no_index_is_compared():
    """A request of objects that say that they are None is theirs."""

    class Taking(ByKey):
        def __getitems__(self, keys):
            assert {Hostile} == {*map(type, keys)}
            return one()

    keys = [Hostile("compared", ValueError), Hostile("", None)]
    assert is_one(next(iter(loader_of(Taking(), batch_size=2, sampler=keys))))


@pytest.mark.core(first=1)
@errors
def test_an_index_that_cannot_be_shown_has_words(error, reached, tmp_path):
    """The death of a worker with such an index in hand is healed, and said."""
    sampler = [Hostile("shown", error), 0]
    loader = loader_of(ByKey(str(tmp_path / "died")), sampler=sampler, restarts=1)
    with pytest.warns(shmloader.RestartWarning, match="index <Hostile>"):
        assert [True, True] == [is_one(batch) for batch in loader]
    assert "trainer/client.py: describe_request" in reached()


class Telling(list):
    """A sampler whose state raises when it is asked for."""

    error = None

    def state_dict(self):
        fail(self.error)

    def load_state_dict(self, state):
        pass


@pytest.mark.core(first=1)
@errors
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_state_that_cannot_be_told_costs_no_batch(error, reached, monkeypatch):
    """Of the dataset in a worker, and without workers, and of a sampler: `trouble` says so."""
    monkeypatch.setattr(Telling, "error", error)
    dataset = Stateful("state_dict", error, one, one)
    told = [
        DataLoader(dataset, batch_size=None),
        loader_of(Numbered([one, one]), sampler=Telling([0, 1])),
    ]
    for loader in [loader_of(dataset, resumable=True), *told]:
        for batch in loader:
            assert is_one(batch)
            assert loader not in told or loader.state_dict()["trouble"]
    assert {
        "worker/worker.py: _ask_dataset",
        "order/resuming/checkpoint.py: described",
        "order/resuming/stateful.py: state",
    } < reached()


@pytest.mark.core(first=1)
@errors
@pytest.mark.parametrize(
    "moment, place",
    [("load_state_dict", "restoring.py: enter_epoch"), ("unpickled", "snapshot.py: position_of")],
)
@pytest.mark.filterwarnings("ignore::shmloader.RestartWarning")
def test_an_error_of_a_replacements_state_is_its_batchs(moment, place, error, reached, tmp_path):
    """No other worker dies of a state that raises in a replacement."""
    die = functools.partial(die_once, str(tmp_path / "died"))
    batches = iter(loader_of(Stateful(moment, error, one, die), restarts=1))
    assert is_one(next(batches))
    assert error is outcome(lambda: next(batches))
    assert f"worker/{place}" in reached()


@pytest.mark.thorough
@pytest.mark.filterwarnings("error")
def test_a_restart_is_no_calls_error(tmp_path):
    """A pool says it without breaking if warnings are errors."""
    marker = str(tmp_path / "died")
    with Pool(1, "fork", restarts=1) as pool:
        calls = functools.partial(made.end_this_process_once, marker), one
        died, whole = [pool.submit(call) for call in calls]
        assert marker == died.result(LONGEST_WAIT_S)
        assert is_one(whole.result(LONGEST_WAIT_S))


@pytest.mark.filterwarnings("error")
def test_a_late_subscriber_ends_no_publisher(caplog):
    """The publisher says it without breaking if warnings are errors."""
    publisher = Publisher(f"doors-{os.getpid()}", 1, None, math.inf)
    peer = SimpleNamespace(pid=7)
    publisher.members = [SimpleNamespace(held={0: None}, since=-60.0, peer=peer)]
    publisher._is_closing = True
    publisher._look_for_laggard(0.0)
    assert "with pid 7" in caplog.text
    publisher._meeting.close()


def test_a_handler_of_the_log_breaks_nothing(capsys, monkeypatch):
    """What it raises is printed, as `logging` does."""
    monkeypatch.setattr(
        logging.getLogger("shmloader"), "filters", [lambda record: fail(ValueError)]
    )
    monkeypatch.setenv("REACHED", os.devnull)
    log.warn("of nothing")
    assert "raise error" in capsys.readouterr().err
