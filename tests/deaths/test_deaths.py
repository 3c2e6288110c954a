"""
Deaths of workers and of the trainer, at any time: torch's error if the trainer lives, nothing left.

The processes of a program are checked here; conftest.py checks /dev/shm after every test.
"""

import os
import queue
import re
import signal
import threading
import time

import pytest
import torch
from torch.utils.data import Dataset

from shmloader import DataLoader
from tests.helpers.programs import Program, wait_until
from tests.helpers.stage import play_file, run_file

START_METHODS = ["fork", "forkserver", "spawn"]
DEATH = re.compile(r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly")

# The head of every program here: datasets that say when they are where the test wants them.
HEAD = """\
import _thread, ctypes, gc, os, random, signal, sys, threading, time
import torch
from torch.utils.data import Dataset, get_worker_info
from shmloader import DataLoader


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())


class Numbers(Dataset):
    def __init__(self, count, pause_s=0.0):
        self.count = count
        self.pause_s = pause_s

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.pause_s:
            time.sleep(self.pause_s)
        return torch.full((8,), index)


class Blocked(Numbers):
    def __getitem__(self, index):
        if index >= 4:
            say("blocked")
            if get_worker_info().id == 0:
                time.sleep(1000)
            ctypes.PyDLL(None).sleep(1000)  # C code that keeps Python's lock
        return super().__getitem__(index)


def make(dataset, **options):
    return DataLoader(dataset, **{"num_workers": 2, "multiprocessing_context": "fork", **options})


def fail(*_):
    raise ValueError("the loop fails")


def leave(*_):
    sys.exit(3)


"""


class Mortal(Dataset):
    """
    Numbers; the worker that fetches 3 dies and leaves the time of its death.

    It waits until the other worker fetches 4, and so has answered all requests before that.
    """

    def __init__(self, folder):
        self.path = folder / "died_at"
        self.others = folder / "others"

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 4:
            self.others.touch()
        if index == 3 and not self.path.exists():
            assert wait_until(self.others.exists)
            time.sleep(0.2)  # the trainer is parked by then
            self.path.write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(index)


def with_two_workers(dataset, **options):
    return DataLoader(dataset, num_workers=2, multiprocessing_context="fork", **options)


def drain(iterator):
    """Iterate until something is raised, and return it."""
    try:
        for _ in iterator:
            continue
    except Exception as error:
        # Without its frames, which would keep the iterator alive.
        return error.with_traceback(None)


# A worker's death


@pytest.mark.parametrize("persistent", [False, True])
def test_killed_worker_is_torchs_error(tmp_path, persistent, record_property):
    """The death of a worker raises torch's RuntimeError, whose cause names the signal."""
    loader = with_two_workers(Mortal(tmp_path), persistent_workers=persistent)
    iterator = iter(loader)
    error = drain(iterator)
    record_property("shown_after_s", time.monotonic() - float((tmp_path / "died_at").read_text()))

    assert RuntimeError is type(error)
    assert DEATH.fullmatch(str(error))
    assert RuntimeError is type(error.__cause__)
    assert f"{iterator._workers[1].pid}) is killed by signal: Killed" in str(error.__cause__)
    loader.close()


def test_iteration_after_a_death_does_not_wait(tmp_path):
    """After a worker died, iterating on gives the batches of the others, as in torch."""
    loader = with_two_workers(Mortal(tmp_path))
    iterator = iter(loader)
    error = drain(iterator)
    numbers = [batch.item() for batch in iterator]

    assert DEATH.fullmatch(str(error))
    assert [4, 6, 7, 8, 9, 10, 11] == numbers
    loader.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_loader_serves_again_after_a_death(tmp_path, persistent):
    """Once closed, the same loader serves a whole epoch, with workers of its own."""
    loader = with_two_workers(Mortal(tmp_path), persistent_workers=persistent)
    error = drain(iter(loader))
    loader.close()

    assert DEATH.fullmatch(str(error))
    assert list(range(12)) == [batch.item() for batch in loader]
    loader.close()


def test_worker_that_dies_while_it_leaves_is_no_news(libraries, tmp_path):
    """A worker killed after it was told to leave changes no batch, and close() says nothing."""
    script = """
def doomed(_):
    # Runs when a worker leaves as it was told to.
    util.Finalize(None, os.kill, args=(os.getpid(), signal.SIGKILL), exitpriority=1)


if __name__ == "__main__":
    loader = make(Numbers(12), worker_init_fn=doomed)
    for _ in range(3):
        say(sum(1 for _ in loader))
        iterator = iter(loader)
        next(iterator)
        del iterator
        iterator = iter(loader)
        next(iterator)
        loader.close()
"""
    status, lines, errors = run_file(
        libraries, tmp_path, "from multiprocessing import util\n" + HEAD + script
    )

    assert (0, ["12"] * 3, "") == (status, lines, errors)


def test_killed_worker_shows_on_another_thread(libraries, tmp_path, record_property):
    """If the iterating thread gets no signal, a death is still found, and is torch's error."""
    script = """
if __name__ == "__main__":
    def iterate():
        iterator = iter(make(Numbers(1000, pause_s=0.01)))
        next(iterator)
        os.kill(iterator._workers[0].pid, signal.SIGKILL)
        started = time.monotonic()
        try:
            for _ in iterator:
                continue
        except RuntimeError as error:
            say(time.monotonic() - started)
            say(type(error.__cause__).__name__)
            say(error)

    thread = threading.Thread(target=iterate)
    thread.start()
    thread.join(30)
"""
    status, (after_s, cause, text), errors = run_file(libraries, tmp_path, HEAD + script)
    record_property("shown_after_s", float(after_s))

    assert (0, "", queue.Empty.__name__) == (status, errors, cause)
    assert DEATH.fullmatch(text)


def test_main_thread_is_not_disturbed_by_other_threads_loaders():
    """Two threads iterate loaders of their own at once, each gets its own batches."""
    results = {}

    def iterate(start):
        loader = DataLoader(range(start, start + 20), num_workers=1, multiprocessing_context="fork")
        results[start] = [batch.item() for batch in loader]
        loader.close()

    threads = [threading.Thread(target=iterate, args=(start,)) for start in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert {0: list(range(20)), 100: list(range(100, 120))} == results


# The trainer's death


@pytest.mark.core(every=3)
@pytest.mark.parametrize("method", START_METHODS)
def test_trainers_death_ends_blocked_workers(libraries, tmp_path, method):
    """Killing the trainer ends workers in a sleep and in C code that keeps Python's lock."""
    script = f"""
if __name__ == "__main__":
    for batch in make(Blocked(40), multiprocessing_context={method!r}):
        held = batch
"""
    with play_file(libraries, tmp_path, HEAD + script) as program:
        assert ["blocked", "blocked"] == [program.line(), program.line()]
        program.send(signal.SIGKILL)

        assert -signal.SIGKILL == program.wait()
        assert set() == program.left()
        assert "" == program.errors


@pytest.mark.core(every=4)
@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("backing", ["memfd", "posix"])
def test_death_of_all_leaves_nothing(libraries, tmp_path, method, backing):
    """
    Killing the trainer and all workers in the middle of an epoch leaves nothing on the machine.
    """
    if (method, backing) in {("forkserver", "posix"), ("spawn", "memfd")}:
        pytest.skip("each start method and each backing is met; the full product costs seconds")
    script = f"""
if __name__ == "__main__":
    iterator = iter(make(Numbers(100000), multiprocessing_context={method!r}, batch_size=4))
    held = [next(iterator) for _ in range(6)]
    say(*(worker.pid for worker in iterator._workers))
    for batch in iterator:
        held = held[1:] + [batch]
"""
    with play_file(libraries, tmp_path, HEAD + script, SHMLOADER_BACKING=backing) as program:
        pids = [program.pid, *map(int, program.line().split())]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

        program.wait()
        assert set() == program.left()


# The trainer's end


ENDINGS = {
    # what happens: status, last line on stderr
    "leave": (3, ""),
    "fail": (1, "ValueError: the loop fails"),
    "SIGTERM": (-signal.SIGTERM, ""),
    "SIGINT": (-signal.SIGINT, "KeyboardInterrupt"),
}


PLACES = ["in next()", "between batches"]
MID_EPOCH = [
    # Every two of the three meet; each case is a process that imports torch.
    (ending, place, (turn + PLACES.index(place)) % 2 == 1)
    for turn, ending in enumerate(ENDINGS)
    for place in PLACES
]


@pytest.mark.core(every=4)
@pytest.mark.parametrize(("ending", "place", "persistent"), MID_EPOCH)
def test_end_in_mid_epoch_is_quiet(libraries, tmp_path, ending, place, persistent):
    """However the trainer ends in mid-epoch, its workers print nothing and nothing is left."""
    # A worker's pause is longer than the wait, so that the trainer is parked when it ends.
    pause_s = 0.5 if place == "in next()" else 0.0
    script = f"""
if __name__ == "__main__":
    iterator = iter(make(Numbers(1000, pause_s={pause_s}), persistent_workers={persistent}))
    held = next(iterator)
    for end in (leave, fail):
        signal.signal(signal.SIGUSR1 if end is leave else signal.SIGUSR2, end)
    say("ready")
    if {pause_s}:
        next(iterator), next(iterator), next(iterator)
    time.sleep(30)
"""
    numbers = {"leave": signal.SIGUSR1, "fail": signal.SIGUSR2, "SIGTERM": signal.SIGTERM}
    status, last_line = ENDINGS[ending]
    with play_file(libraries, tmp_path, HEAD + script) as program:
        assert "ready" == program.line()
        time.sleep(0.1)
        if ending == "SIGINT":
            program.send_to_all(signal.SIGINT)
        else:
            program.send(numbers[ending])

        assert status == program.wait()
        assert set() == program.left()
        assert_only_trace(program.errors, last_line)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_interrupt_of_other_start_methods_is_quiet(libraries, tmp_path, method):
    """Ctrl-C reaches the workers too; even those not forked from the trainer print nothing."""
    script = f"""
if __name__ == "__main__":
    iterator = iter(make(Numbers(1000, pause_s=0.5), multiprocessing_context={method!r}))
    held = next(iterator), next(iterator)
    say("ready")
    next(iterator), next(iterator), next(iterator)
"""
    with play_file(libraries, tmp_path, HEAD + script) as program:
        assert "ready" == program.line()
        program.send_to_all(signal.SIGINT)

        assert -signal.SIGINT == program.wait()
        assert set() == program.left()
        assert_only_trace(program.errors, "KeyboardInterrupt")


def assert_only_trace(errors, last_line):
    """Check that stderr holds the trainer's one traceback, or nothing if none is due."""
    assert last_line == "".join(errors.strip().splitlines()[-1:])
    assert errors.count("Traceback") == (1 if last_line else 0), errors
    assert "Exception ignored" not in errors


@pytest.mark.core(every=4)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_normal_exit_is_silent(tmp_path, method, persistent):
    """
    A program that ends with live iterators and held batches prints nothing and leaves nothing.
    """
    script = f"""
if __name__ == "__main__":
    loader = make(
        Numbers(50), multiprocessing_context={method!r}, persistent_workers={persistent}
    )
    iterator = iter(loader)
    held = [next(iterator) for _ in range(3)]
    array = next(iterator).numpy()
    view = memoryview(next(iterator).numpy())
    cycle = [loader, iterator, next(iterator)]
    cycle.append(cycle)
    if {method!r} == "fork":
        finished = make(Numbers(6), persistent_workers={persistent})
        list(finished)
        others = [iter(make(Numbers(50))) for _ in range(3)]
"""
    with Program(tmp_path, HEAD + script) as program:
        assert 0 == program.wait(), program.errors
        assert set() == program.left()
        assert ("", []) == (program.errors, program.lines())


@pytest.mark.thorough
def test_exit_from_a_daemon_thread_that_iterates_is_silent(tmp_path):
    """The interpreter may end while another thread waits in next()."""
    script = """
if __name__ == "__main__":
    def iterate():
        for _ in make(Numbers(1000, pause_s=0.2)):
            say("batch")

    threading.Thread(target=iterate, daemon=True).start()
    time.sleep(0.5)
"""
    with Program(tmp_path, HEAD + script) as program:
        assert 0 == program.wait(), program.errors
        assert set() == program.left()
        assert "" == program.errors


# Interrupts at any moment


INTERRUPTS = """
class Interrupt(KeyboardInterrupt):
    pass


def interrupt(*_):
    if armed:
        armed.clear()
        raise Interrupt()


def listen():
    # By way of SIGINT, as Ctrl-C comes, which is put off while workers are forked.
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGALRM, lambda *_: _thread.interrupt_main())


def disturbed(longest_s, action):
    \"\"\"Returns True if an action was interrupted at a random moment.\"\"\"
    armed.append(True)
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, longest_s))
        action()
        armed.clear()
        return False
    except Interrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


armed = []


def iterate(loader):
    for batch in loader:
        held.append(batch)
        del held[:-2]


def numbers(loader):
    return [batch[0, 0].item() for batch in loader]


held = []
"""


@pytest.mark.thorough
def test_interrupted_epochs_lose_nothing(libraries, tmp_path, seeded):
    """
    After an interrupt at any moment of a persistent epoch the next one is whole, no slot is lost.
    """
    script = f"""
if __name__ == "__main__":
    random.seed({seeded})
    listen()
    loader = make(Numbers(12), persistent_workers=True, slots=12)
    iterate(loader)
    interrupts = 0
    ends = time.monotonic() + 20  # met on a busy machine alone
    while interrupts < 150 and time.monotonic() < ends:
        interrupts += disturbed(0.002, lambda: iterate(loader))
        if random.random() < 0.5 and numbers(loader) != list(range(12)):
            fail()
    held.clear()
    gc.collect()
    list(loader)
    slots = loader.stats().slots
    say(interrupts > 10, slots["free"], sum(slots.values()) - slots["spare"])
    loader.close()
"""
    status, lines, errors = run_file(libraries, tmp_path, HEAD + INTERRUPTS + script)

    assert (0, ["True 12 12"]) == (status, lines), (seeded, errors)


@pytest.mark.thorough
def test_interrupted_starts_lose_nothing(libraries, tmp_path, seeded):
    """
    After an interrupt at any moment of starting workers the next epoch is whole, none is left.
    """
    script = f"""
if __name__ == "__main__":
    random.seed({seeded})
    listen()
    loader = make(Numbers(12), slots=7)
    iterate(loader)
    interrupts = 0
    ends = time.monotonic() + 20  # met on a busy machine alone
    while interrupts < 30 and time.monotonic() < ends:
        interrupts += disturbed(0.03, lambda: iterate(loader))
        if numbers(loader) != list(range(12)):
            fail()
    held.clear()
    loader.close()
    say(interrupts > 3)
"""
    with play_file(libraries, tmp_path, HEAD + INTERRUPTS + script) as program:
        assert 0 == program.wait(), (seeded, program.errors)
        assert set() == program.left()
        assert ["True"] == program.lines()
