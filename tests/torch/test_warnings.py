"""Each warning names the line of user code that led to it, not one of ours, torch's or others'."""

import collections
import linecache
import os
import signal
import sys
import textwrap
import threading
import warnings

import pytest
import torch
import torch.utils.data
import tqdm

import shmloader
from tests.helpers.datasets import Numbered, Stream

MARK = "# the user's line"
LARGE = 1 << 14  # samples whose copies are worth a word


class Unpicklable(Numbered):
    """A dataset that spawn cannot send."""

    def __reduce__(self):
        raise TypeError("cannot be pickled")


class Longer(Stream):
    """An iterable dataset that says that it has one sample, and has more."""

    def __iter__(self):
        return iter(range(self.count))

    def __len__(self):
        return 1


def kill_first(loader):
    """Kill a worker as soon as there is one."""
    iterator = iter(loader)
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    return iterator


def unpicklable():
    return shmloader.DataLoader(Unpicklable(4), num_workers=1, multiprocessing_context="spawn")


def longer(workers=1):
    loader = shmloader.DataLoader(Longer(3), num_workers=workers)
    len(loader)
    return loader


# What is warned of, what begins the program, and the line of the user that is named.
CASES = {
    "spawn": ("Got pickle error", unpicklable, "list(given)"),
    "retention": (
        "16 batches were copied",
        lambda: shmloader.DataLoader(Numbered(40, LARGE), num_workers=1, slots=3),
        "kept = [batch for batch in given]",
    ),
    "restart": (
        "was killed by SIGKILL",
        lambda: kill_first(shmloader.DataLoader(Numbered(40), num_workers=1, restarts=1)),
        "list(given)",
    ),
    "length": ("was reported to be 1", longer, "for batch in given: batch"),
    "length, no workers": ("was reported to be 1", lambda: longer(0), "for batch in given: batch"),
    "pinning": (
        "'pin_memory' argument is set",
        lambda: shmloader.DataLoader(Numbered(2), num_workers=1, pin_memory=True),
        "iterator = iter(given)",
    ),
    "unused": (
        "without effect: slots=3",
        lambda: Numbered(2),
        "given = shmloader.DataLoader(given, slots=3)",
    ),
    "processors, at the start": (
        "will create 2 worker processes",
        lambda: shmloader.DataLoader(Numbered(2), num_workers=2),
        "iterator = iter(given)",
    ),
    "processors, as it is made": (
        "will create 2 worker processes",
        lambda: Numbered(2),
        "given = shmloader.DataLoader(given, num_workers=2)",
    ),
}

# Ways from the user's line to ours: the user's own module, what a framework does, a progress bar.
PLAIN = f"def run(given):\n    LINE {MARK}\n"
OWN_WRAPPER = f"""
class Wrapper:
    def __init__(self, inner):
        self.inner = inner
    def __iter__(self):
        for each in self.inner: {MARK}
            yield each
def run(given):
    given = Wrapper(given)
    LINE
"""
FRAMEWORK = """
class Trainer:
    def fit(self, given, do):
        if do is not None:
            return do(given)
        return self.each(given)
    def each(self, given):
        LINE
"""
THROUGH_FRAMEWORK = f"""
from framework import Trainer
def run(given):
    trainer = Trainer()
    trainer.fit(given, None) {MARK}
"""
CALLED_BY_FRAMEWORK = f"""
from framework import Trainer
def step(given):
    LINE {MARK}
def run(given):
    Trainer().fit(given, step)
"""


@pytest.fixture(autouse=True)
def one_processor(monkeypatch):
    """torch finds two workers too many, on any machine; there is nothing to pin memory for."""
    monkeypatch.setattr(torch._utils, "cpu_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


def module(folder, name, text):
    """Write a module and import it."""
    (folder / f"{name}.py").write_text(textwrap.dedent(text))
    scope = {"__name__": name, "shmloader": shmloader, "tqdm": tqdm}
    path = str(folder / f"{name}.py")
    exec(compile((folder / f"{name}.py").read_text(), path, "exec"), scope)
    linecache.checkcache(path)
    return scope


def warned_by(run, given, words):
    """Run a program; returns the warnings with these words."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        try:
            run(given)
        except TypeError as error:
            assert "cannot be pickled" in str(error)
    return [warning for warning in caught if words in str(warning.message)]


def line_of(warning):
    return linecache.getline(warning.filename, warning.lineno)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", [PLAIN, THROUGH_FRAMEWORK, CALLED_BY_FRAMEWORK])
def test_the_users_line_is_named(tmp_path, monkeypatch, case, way):
    """Also if an installed framework iterates, the line that is named is the user's."""
    words, make, line = CASES[case]
    installed = tmp_path / "site-packages"
    installed.mkdir()
    framework = module(installed, "framework", FRAMEWORK.replace("LINE", line))
    monkeypatch.setitem(sys.modules, "framework", type(sys)("framework"))
    vars(sys.modules["framework"]).update(framework)
    run = module(tmp_path, "users", way.replace("LINE", line))["run"]
    found = warned_by(run, make(), words)

    assert found
    assert all(MARK in line_of(warning) for warning in found)


@pytest.mark.core(first=1)
@pytest.mark.parametrize("case", ["retention", "restart", "length"])
def test_a_wrapper_of_the_users_own_is_their_line(tmp_path, case):
    """The innermost line that is not installed counts: it is the one that asks for the batch."""
    words, make, line = CASES[case]
    run = module(tmp_path, "users", OWN_WRAPPER.replace("LINE", line))["run"]
    found = warned_by(run, make(), words)

    assert found
    assert all(MARK in line_of(warning) for warning in found)


def test_a_progress_bar_is_not_the_users_line(tmp_path):
    """The line with the bar is named, not one inside of tqdm."""
    tqdm.tqdm.set_lock(threading.RLock())  # its own would be a semaphore that stays
    words, make, _ = CASES["retention"]
    line = f"kept = [batch for batch in tqdm.tqdm(given, disable=True)] {MARK}"
    run = module(tmp_path, "users", f"def run(given):\n    {line}\n")["run"]
    (warning,) = warned_by(run, make(), words)

    assert MARK in line_of(warning)


@pytest.mark.thorough
@pytest.mark.parametrize("silenced", ["json", r"torch\.utils\.data\.dataloader"])
@pytest.mark.parametrize("case", ["pinning", "processors, at the start"])
def test_a_line_is_shown_once(tmp_path, case, silenced):
    """By Python's usual rule, in all epochs; never if torch's own is silenced by its module."""
    words, make, line = CASES[case]
    run = module(tmp_path, "users", PLAIN.replace("LINE", line))["run"]
    given = make()
    with warnings.catch_warnings(record=True, action="default") as caught:
        warnings.filterwarnings("ignore", module=silenced)
        for _ in range(3):
            run(given)

    assert (silenced == "json") == sum(words in str(warning.message) for warning in caught)


def test_warnings_of_others_are_theirs(tmp_path):
    """What a user's sampler warns of while the loader starts names the sampler's line."""

    class Sampler(collections.UserList):
        def __iter__(self):
            warnings.warn("look", stacklevel=1)  # the sampler's line
            return super().__iter__()

    given = shmloader.DataLoader(Numbered(2), num_workers=1, sampler=Sampler([0]), pin_memory=True)
    run = module(tmp_path, "users", PLAIN.replace("LINE", "list(given)"))["run"]
    found = warned_by(run, given, "look")

    assert found
    assert all("# the sampler's line" in line_of(warning) for warning in found)


@pytest.fixture
def with_a_thread():
    """Run a thread meanwhile, beside which Python warns of a fork."""
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    yield
    is_over.set()
    thread.join()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python warns of forks from 3.12 on")
@pytest.mark.parametrize(("options", "more"), [({}, 0), ({"restarts": 1}, 1)])
def test_forks_are_warned_of_as_with_torch(with_a_thread, options, more):
    """Python warns of each worker's fork, as with torch, and of the nursery's."""

    def places(loader_class, **options):
        loader = loader_class(Numbered(4), num_workers=2, **options)
        return [warning.filename for warning in warned_by(list, loader, "use of fork()")]

    expected = places(torch.utils.data.DataLoader)

    assert 2 == len(expected)
    assert expected + expected[:more] == places(shmloader.DataLoader, **options)
