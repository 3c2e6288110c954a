"""A death is known whatever reaps the trainer's children: the kernel, a handler or a thread."""

import multiprocessing
import os
import re

import pytest

from shmloader.processes import starting
from tests.helpers.stage import Play, staged

HEAD = """\
import os, signal, threading, time, warnings
import torch
from shmloader import DataLoader, RestartWarning
from shmloader.worker import growth
from tests.deaths.test_growth import COUNT, MOST, Leaking
from tests.helpers.healing import epoch, open_loader, undisturbed
from tests.helpers.mortal import Mortal, Script
from tests.helpers.warned import AT_A_FORK


def say(*words):
    print(*words, flush=True)


def ignore():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def reap_all(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def handle():
    signal.signal(signal.SIGCHLD, reap_all)


def reap_for_ever():
    while True:
        reap_all()
        time.sleep(0.001)


def change_nothing():
    return  # SIGCHLD is as torch's loader has it, and a thread other than the main one gets none.


def wait_on_a_thread():
    threading.Thread(target=reap_for_ever, daemon=True).start()


def doomed(*points):
    return Mortal(Script(os.getcwd(), *points))


def texts(warned):
    return [str(warning.message) for warning in warned]


warnings.simplefilter("always")
warnings.filterwarnings("ignore", AT_A_FORK, DeprecationWarning)
"""

KNOWN = "was killed by SIGKILL"
LOST = r"ended \(its exit code is not known, as something else in this process reaped it\)"
WAYS = {
    "ignore": LOST,
    "handle": LOST,
    "wait_on_a_thread": f"{LOST}|{KNOWN}",  # now and then the trainer is faster than the thread
}

stage = staged(HEAD)


def play(stage, folder, script):
    """Run a script on the stage; returns its lines if it ended well and left nothing."""
    with Play(stage, folder, f"os.chdir({str(folder)!r})\n{script}") as program:
        lines = program.lines()
        assert (0, "", set()) == (program.wait(), program.errors, program.left())
        return lines


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("moment", "method"),
    [("before", "fork"), ("after", "fork"), ("before", "spawn"), ("before", "forkserver")],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_killed_worker_is_replaced(stage, tmp_path, way, moment, method):
    """Deaths are healed, by the batches that torch has without them, and the warnings say why."""
    # A worker that is spawned imports torch, for a second or two.
    points = ["item 3"] if method == "spawn" else ["item 3", "item 9", "drawn 15"]
    workers = 1 if method == "spawn" else 2
    script = f"""
if __name__ == "__main__":
    options = dict(num_workers={workers})
    (expected,) = undisturbed(doomed(), **options)
    dataset, moment = doomed(*{points}), {moment!r}
    options |= dict(restarts=3, multiprocessing_context={method!r})
    with (
        warnings.catch_warnings(record=True) as warned,
        open_loader(DataLoader, dataset, **options) as loader,
    ):
        {way}() if moment == "before" else None
        with dataset.script.held_back():
            iterator = iter(loader)
            {way}() if moment == "after" else None
        actual = [batch.tolist() for batch in iterator]
        say(expected == actual, loader.stats().restarts)
    print(*texts(warned), sep="\\n", flush=True)
"""
    result, *said = play(stage, tmp_path, script)
    # A replacement of a forked worker is the nursery's child; workers of a server are the server's.
    of_trainer = {"fork": 1, "spawn": 1, "forkserver": 0}[method]
    lost = sum(re.search(WAYS[way], line) is not None for line in said)
    known = sum(KNOWN in line for line in said)

    assert (f"True {len(points)}", len(points)) == (result, len(said))
    if way != "wait_on_a_thread":
        assert (of_trainer, len(points)) == (lost, lost + known)


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_deaths_beyond_the_restarts_are_one_error(stage, tmp_path, way):
    """The error claims no exit code that is not known, and says why it is not."""
    script = f"""
{way}()
with open_loader(DataLoader, doomed("item 3"), worker_bytes=1 << 40, restarts=0) as loader:
    try:
        list(loader)
    except RuntimeError as error:
        say(error)
"""
    (said,) = play(stage, tmp_path, script)

    assert re.search(rf"exited unexpectedly: it ({WAYS[way]}) with .* \[3, 4, 5\] in hand", said)


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_grew_is_replaced(stage, tmp_path, way):
    """That a worker left because it grew is known from its last answer, not from its exit code."""
    script = f"""
growth._EVERY_S = 0.0
{way}()
with open_loader(DataLoader, Leaking(), worker_bytes=MOST) as loader:
    numbers = [number for batch in loader for number in batch[:, 0].tolist()]
    say(numbers == list(range(COUNT)), loader.stats().replaced > 2, loader.stats().restarts)
"""

    assert ["True True 0"] == play(stage, tmp_path, script)


@pytest.mark.core(first=1)
@pytest.mark.parametrize("thread", ["main", "another"])
@pytest.mark.parametrize("way", [*WAYS, "change_nothing"])
def test_without_restarts_it_is_torchs_error(stage, tmp_path, way, thread):
    """Without healing a death is torch's error, on other threads too, which get no signal."""
    script = f"""
def iterate():
    try:
        list(open_loader(DataLoader, doomed("item 3")))
    except RuntimeError as error:
        say(error)


{way}()
if {thread!r} == "main":
    iterate()
else:
    other = threading.Thread(target=iterate)
    other.start()
    other.join(20)
"""
    (said,) = play(stage, tmp_path, script)

    assert re.fullmatch(r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly", said)


def exit_at_once():
    os._exit(7)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_that_is_none_any_more_has_ended(method):
    """A process that something else reaped does not live, and has an exit code that none can."""
    process = multiprocessing.get_context(method).Process(target=exit_at_once)
    starting.start(process)
    os.waitpid(process.pid, 0)

    assert (False, starting.UNKNOWN_CODE) == (process.is_alive(), process.exitcode)
    process.join()
    process.close()
