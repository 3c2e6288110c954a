"""The logger "shmloader": quiet unless it is turned on, then rare events and never a batch."""

import contextlib
import gc
import logging
import os
import re
import signal
import threading

import pytest

import shmloader
from shmloader import log
from tests.helpers.copies import Child
from tests.helpers.datasets import Numbered
from tests.helpers.warned import recorded

LOGGER = logging.getLogger("shmloader")
FORK_QUIETLY = "import warnings; warnings.simplefilter('ignore')\n"


@pytest.fixture(autouse=True)
def nothing_is_kept():
    """Lines that finalizers of other tests kept are not told in these."""
    gc.collect()
    log._kept.clear()


@pytest.fixture
def told(caplog):
    """What the logger is told, as a function that lists the lines so far, without the name."""
    caplog.set_level(logging.DEBUG, logger="shmloader")
    return lambda: [
        re.sub(r"^loader \d+: ", "", record.getMessage())
        for record in caplog.records
        if record.name == "shmloader"
    ]


def lines_with(told, words):
    """List the lines that contain these words."""
    return [line for line in told() if words in line]


@pytest.mark.thorough
def test_it_is_quiet_by_default(run_program):
    """A program that configures no logging sees nothing, whatever happens."""
    script = (
        FORK_QUIETLY
        + """
import logging, shmloader
from tests.helpers.datasets import Numbered
loader = shmloader.DataLoader(Numbered(40), num_workers=2)
kept = list(loader)
next(iter(loader))
loader.close()
logger = logging.getLogger("shmloader")
print(logger.level, logger.propagate, [type(each).__name__ for each in logger.handlers])
"""
    )
    status, lines, errors = run_program(script)

    assert (0, ["0 True ['NullHandler']"], "") == (status, lines, errors)


def test_an_epoch_is_told(told):
    """Segment, end with counts, and close, in this order."""
    with shmloader.DataLoader(Numbered(6), 2, num_workers=2, slots=7) as loader:
        list(loader)
    made, ended, freed, closed = told()

    assert re.fullmatch(r"segment made: 7 slots and 14 spare ranges of [\d.]+ MB each, .*", made)
    assert re.fullmatch(
        r"epoch ended: 3 batches of 0.0 MB in all, \d+\.\d{3} s waited, 0 copied out, 0 restarts; "
        r"\d+\.\d MB resident",
        ended,
    )
    assert re.fullmatch(r"segment freed: \d+\.\d MB of pages, those of 0 held batches .*", freed)
    assert "closed" == closed


@pytest.mark.thorough
@pytest.mark.parametrize("is_heard", [True, False])
def test_nothing_is_done_for_a_batch(told, monkeypatch, is_heard):
    """However many batches there are, the logger is asked and told as often."""
    LOGGER.setLevel(logging.DEBUG if is_heard else logging.WARNING)
    asked = []
    ask = LOGGER.isEnabledFor
    monkeypatch.setattr(LOGGER, "isEnabledFor", lambda level: asked.append(level) or ask(level))

    def ran(count):
        before = len(asked), len(told())
        with shmloader.DataLoader(Numbered(count), num_workers=1, slots=8) as loader:
            for _ in loader:
                pass
        return len(asked) - before[0], len(told()) - before[1]

    few = ran(5)
    assert few == ran(300)
    assert (is_heard, True) == (few[1] > 0, few[0] > 0)


def test_spills_are_told_at_powers_of_two(told):
    """A reason is told at its first, second, fourth spill and so on, with what to change."""
    with shmloader.DataLoader(Numbered(56), 4, num_workers=1, slots=3) as loader:
        kept = list(loader)
        spilled = loader.stats().spilled
    lines = lines_with(told, "copied out, number")
    numbers = [int(re.search(r"number (\d+)", line)[1]) for line in lines]

    assert 14 == len(kept) > spilled > 2
    assert [2**power for power in range(spilled.bit_length())] == numbers
    assert all("raise slots (now 3)" in line for line in lines)


@pytest.mark.thorough
def test_restarts_are_told(told):
    """The line has the warning's words: which worker, why, with what in hand."""
    loader = shmloader.DataLoader(Numbered(60), num_workers=2, restarts=1)
    with loader, recorded() as warned:
        iterator = iter(loader)
        pid = iterator._workers[1].pid
        os.kill(pid, signal.SIGKILL)
        count = sum(1 for _ in iterator)

    assert 60 == count
    assert [str(warned[0].message)] == lines_with(told, "was killed by SIGKILL")
    assert f"DataLoader worker 1 (pid {pid})" in str(warned[0].message)
    assert "1 restarts" in lines_with(told, "epoch ended")[0]


class Jealous(logging.Handler):
    """A handler that drops an iterator while it holds a lock that is not reentrant."""

    def __init__(self):
        super().__init__()
        self.lines = []
        self.to_drop = []
        self._mutex = threading.Lock()

    def emit(self, record):
        assert self._mutex.acquire(blocking=False), "called while it holds its lock"
        with contextlib.closing(self):
            self.to_drop.clear()
            self.lines.append(record.getMessage())

    def close(self):
        self._mutex.release()


@contextlib.contextmanager
def handled_by(handler):
    """Have a handler of one's own beside those that are there."""
    LOGGER.addHandler(handler)
    try:
        yield handler
    finally:
        LOGGER.removeHandler(handler)


def test_a_finalizer_tells_nothing_at_once(told):
    """An iterator that is dropped inside of a handler does not call that handler again."""
    with (
        handled_by(Jealous()) as handler,
        shmloader.DataLoader(Numbered(50), num_workers=1) as loader,
    ):
        iterator = iter(loader)
        next(iterator)
        handler.to_drop.append(iterator)
        del iterator
        LOGGER.debug("now")
        told_by_then = lines_with(told, "epoch ended")
        assert [] == handler.to_drop
    late = lines_with(told, "epoch ended")

    assert ([], 1) == (told_by_then, len(late))
    assert re.search(r"1 batches.*\(\d+\.\d s ago\)$", late[0])


def test_a_forked_child_does_not_tell_its_parents_lines():
    """What a finalizer kept before a fork is the parent's to tell."""
    with log.in_finalizer():
        log.tell("of the parent")

    assert ("0", 1) == (Child(lambda: len(log._kept)).end(), len(log._kept))


FORKS = (
    FORK_QUIETLY
    + """
import logging, os, sys, threading
import shmloader
from tests.helpers.datasets import Numbered

# A file object has a lock of its own, which a worker may inherit locked, with any loader. This
# handler has the one that logging gives it.
class Direct(logging.Handler):
    def emit(self, record):
        os.write(file, self.format(record).encode())

file = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
logger = logging.getLogger("shmloader")
logging.basicConfig(level=logging.DEBUG, handlers=[Direct()])
is_over = threading.Event()

class Chatty(Numbered):
    def __getitem__(self, index):
        logger.debug("worker has %d", index)
        logging.getLogger(f"made.{index}").debug("new logger")
        return super().__getitem__(index)

def log():
    number = 0
    while not is_over.is_set():
        number += 1
        logger.debug("line %d of another thread", number)
        logging.getLogger(f"other.{number % 50}").isEnabledFor(logging.DEBUG)

threads = [threading.Thread(target=log) for _ in range(2)]
for thread in threads:
    thread.start()
batches = 0
for epoch in range(EPOCHS):
    with shmloader.DataLoader(Chatty(8), num_workers=2, OPTIONS) as loader:
        batches += sum(1 for _ in loader)
is_over.set()
for thread in threads:
    thread.join()
print(batches)
"""
)


@pytest.mark.thorough
@pytest.mark.parametrize(("epochs", "options"), [(12, "timeout=20"), (3, "timeout=20, restarts=1")])
def test_workers_are_forked_while_other_threads_log(run_program, epochs, options):
    """No worker waits for a lock that a thread of the trainer held when it was forked."""
    script = FORKS.replace("EPOCHS", str(epochs)).replace("OPTIONS", options)
    status, lines, errors = run_program(script)

    assert (0, [str(8 * epochs)], "") == (status, lines, errors)


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise SystemExit(3)"])
def test_a_program_that_ends_within_an_epoch(run_program, tmp_path, end):
    """At exit of the interpreter no line is told to handlers that are closed."""
    script = (
        FORK_QUIETLY
        + f"""
import logging, sys
import shmloader
from tests.helpers.datasets import Numbered

logging.basicConfig(level=logging.DEBUG, filename="log.txt")
loader = shmloader.DataLoader(Numbered(50), num_workers=2)
persistent = shmloader.DataLoader(Numbered(50), num_workers=1, persistent_workers=True)
iterators = [iter(loader), iter(persistent)]
batches = [next(iterator) for iterator in iterators]
loader.circle = loader
{end}
"""
    )
    status, _, errors = run_program(script)
    lines = (tmp_path / "log.txt").read_text().splitlines()

    assert (3 if end else 0, "") == (status, errors)
    assert 2 == sum("segment made" in line for line in lines)
