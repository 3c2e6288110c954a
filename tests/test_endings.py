"""
Every way in which a trainer ends, whatever its workers are doing, and every state at its exit.

Nothing runs afterwards, and nobody says anything but the trainer itself, with warnings as errors,
and once in Python's development mode. What workers do that were killed is in test_deaths.
"""

import multiprocessing
import os
import re
import signal
import subprocess
import sys

import pytest

from programs import GONE_WITHIN_S, search_path
from shmloader import processes
from stage import Play, Stage

HEAD = """\
import _thread, atexit, ctypes, gc, multiprocessing, os, signal, sys, threading, time, warnings

warnings.filterwarnings("ignore", "This DataLoader will create")
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)


def at_the_very_end():
    # Registered before anybody else's handler, so called after all of them.
    for action in last_actions:
        action()


last_actions = []
atexit.register(at_the_very_end)

import torch
from multiprocessing.util import Finalize
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from shmloader import DataLoader


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())


class Numbers(Dataset):
    def __init__(self, count, pause_s=0.0, size=8):
        self.count = count
        self.pause_s = pause_s
        self.size = size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.pause_s)
        return torch.full((self.size,), index)


# Ways to be blocked, and to stay so whatever is asked of a worker.


def sleep():
    time.sleep(1000)


def hold_the_lock():
    ctypes.PyDLL(None).sleep(1000)


def loop():
    while True:
        continue


def read():
    os.read(os.pipe()[0], 1)


def swallow():
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            continue


def have_a_thread():
    threading.Thread(target=sleep).start()
    sleep()


def be_deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep()


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


WAYS = [sleep, hold_the_lock, loop, read, swallow, have_a_thread]
ALL_WAYS = [*WAYS, be_deaf, stop]


class Blocking(Numbers):
    \"\"\"Each worker blocks in its own way, from the second batch on.\"\"\"

    def __init__(self, ways):
        super().__init__(1000)
        self.ways = ways
        self.gate = os.pipe()

    def __getitem__(self, index):
        if index >= len(self.ways):
            say("blocked")
            os.write(self.gate[1], b".")
            self.ways[get_worker_info().id]()
        return super().__getitem__(index)

    def wait(self):
        for _ in self.ways:
            os.read(self.gate[0], 1)


class Pickling(Numbers):
    \"\"\"Blocks while it is pickled, or while it is unpickled.\"\"\"

    def __init__(self, moment):
        super().__init__(100)
        self.moment = moment

    def __getstate__(self):
        self.block_at("pickled")
        return vars(self)

    def __setstate__(self, state):
        vars(self).update(state)
        self.block_at("unpickled")

    def block_at(self, moment):
        if self.moment == moment:
            say("blocked")
            time.sleep(1000)


class InWorker(Numbers):
    def __getitem__(self, index):
        return next(iter(make(Numbers(4))))


class Touching:
    def __init__(self, batch):
        self.batch = batch

    def __del__(self):
        self.batch.add_(1).sum().item()


def block(*_):
    say("blocked")
    time.sleep(1000)


def ignore(*_):
    pass


def make(dataset, **options):
    return DataLoader(dataset, **{"num_workers": 2, "multiprocessing_context": "fork", **options})


def block_all(ways, **options):
    return make(Blocking(ways), num_workers=len(ways), **options)


def fail():
    raise ValueError("the loop fails")


def leave():
    sys.exit(3)


def tell_interrupts():
    say(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """
    The process from which all programs here are forked.
    """
    flags = ["-X", "faulthandler", "-W", "error"]
    with Stage(tmp_path_factory.mktemp("stage"), HEAD, *flags) as stage:
        yield stage


def end(program, ending, blocked):
    """
    Wait until workers are blocked, and send what ends the trainer, unless it does so itself.
    """
    for _ in range(blocked):
        assert "blocked" == program.line()
    if ending.endswith(" to all"):
        program.send_to_all(signal.Signals[ending.removesuffix(" to all")])
    elif ending.startswith("SIG"):
        program.send(signal.Signals[ending])


def assert_ended(program, status, last_line=""):
    """
    Check the end of a trainer: its status, nothing left, and no words but its own.

    Args:
        last_line: On stderr, of its one traceback; "" for no words, None for any.
    """
    assert status == program.wait(), program.errors
    assert set() == program.left()
    if last_line is not None:
        assert last_line == "".join(program.errors.splitlines()[-1:]), program.errors
        assert bool(last_line) == program.errors.count("Traceback"), program.errors
    assert "Exception ignored" not in program.errors
    assert "Process " not in program.errors


# Blocked workers

# What ends the trainer: its status, and the last line of its traceback.
ENDINGS = {
    "SIGINT": (-signal.SIGINT, "KeyboardInterrupt"),
    "SIGINT to all": (-signal.SIGINT, "KeyboardInterrupt"),
    "fail()": (1, "ValueError: the loop fails"),
    "leave()": (3, ""),
    "os._exit(4)": (4, ""),
    "os.abort()": (-signal.SIGABRT, None),
    "SIGKILL": (-signal.SIGKILL, ""),
    "SIGTERM": (-signal.SIGTERM, ""),
    "SIGTERM to all": (-signal.SIGTERM, ""),
    "SIGHUP to all": (-signal.SIGHUP, ""),
}
# Those at which the interpreter ends, so that it can kill what nothing else ends.
ORDERLY = {"SIGINT", "SIGINT to all", "fail()", "leave()"}

LOOPS = {
    "global": """
iterator = iter(loader)
for batch in iterator:
    held = batch
""",
    "function": """
def main():
    for batch in loader:
        held = batch

main()
""",
    "with": """
with loader:
    for batch in loader:
        held = batch
""",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_blocked_workers_end_with_the_trainer(stage, tmp_path, ending):
    """
    Workers that are blocked, each in another way, are gone when the trainer is.
    """
    ways = "ALL_WAYS" if ending in ORDERLY else "WAYS"
    count = 8 if ending in ORDERLY else 6
    act = "time.sleep(0.1)" if ending.startswith("SIG") else f"time.sleep(0.3); {ending}"
    script = f"""
iterator = iter(block_all({ways}))
held = [next(iterator) for _ in {ways}]
while True:
    {act}
"""
    with Play(stage, tmp_path, script) as program:
        end(program, ending, count)
        assert_ended(program, *ENDINGS[ending])


@pytest.mark.parametrize("options", ["", "restarts=2, persistent_workers=True"])
@pytest.mark.parametrize("loop", LOOPS)
def test_interrupt_of_a_wait_for_blocked_workers(stage, tmp_path, loop, options):
    """
    Ctrl-C ends every kind of loop, also where that closes the loader.
    """
    script = f"loader = block_all([sleep, be_deaf], {options})\n" + LOOPS[loop]
    with Play(stage, tmp_path, script) as program:
        end(program, "SIGINT to all", 2)
        assert_ended(program, -signal.SIGINT, "KeyboardInterrupt")


class Stubborn:
    """
    A process that ends `ends_after_s` after it was killed, by a clock that only waiting moves.
    """

    now_s = 0.0

    def __init__(self, ends_after_s):
        self.ends_after_s = ends_after_s
        self.ends_at_s = float("inf")

    def is_alive(self):
        return Stubborn.now_s < self.ends_at_s

    def terminate(self):
        """Nothing happens."""

    def kill(self):
        self.ends_at_s = Stubborn.now_s + self.ends_after_s

    def join(self, timeout):
        Stubborn.now_s = max(Stubborn.now_s, min(self.ends_at_s, Stubborn.now_s + timeout))


@pytest.mark.parametrize("count", [1, 64])
def test_all_workers_are_waited_for_together(monkeypatch, count):
    """
    Any number of workers that do nothing of what they are told are gone within two seconds.
    """
    monkeypatch.setattr(Stubborn, "now_s", 0.0)
    monkeypatch.setattr(processes.time, "monotonic", lambda: Stubborn.now_s)
    workers = [Stubborn(ends_after_s=0.01) for _ in range(count)]
    processes.join_all(workers, processes.LEAVE_S)
    processes.end_all(workers)

    assert not any(worker.is_alive() for worker in workers)
    assert GONE_WITHIN_S > Stubborn.now_s


# Moments of an epoch, and of a start

# What the trainer is doing: a script that says "blocked" when it, or a worker, is there; how often.
MOMENTS = {
    "the workers start": (
        "say('blocked'); loader = make(Numbers(9), num_workers=16); iter(loader)",
        1,
    ),
    "init": ("iterator = iter(make(Numbers(9), worker_init_fn=block)); next(iterator)", 2),
    "a grant is awaited": (
        """
iterator = iter(make(Numbers(9, size=1 << 17), batch_size=None, ring_bytes=3 << 20))
held = next(iterator)
block()
""",
        1,
    ),
    "batches spill": (
        """
iterator = iter(make(Numbers(99, size=13 << 20), batch_size=None, num_workers=1, slots=1))
say("blocked")
held = [batch for batch in iterator]
""",
        1,
    ),
    "persistent workers wait": (
        """
loader = make(Numbers(9), persistent_workers=True)
for batch in loader:
    held = batch
block()
""",
        1,
    ),
    "the loader is closed": (
        """
loader = block_all([sleep, be_deaf])
iterator = iter(loader)
next(iterator), next(iterator)
loader.dataset.wait()
loader.close()
""",
        2,
    ),
    "workers are healed": (
        """
warnings.simplefilter("ignore")
iterator = iter(make(Numbers(9, pause_s=0.1), restarts=3))
os.kill(iterator._workers[0].pid, signal.SIGKILL)
next(iterator), next(iterator)
os.kill(iterator._workers[1].pid, signal.SIGKILL)
block()
""",
        1,
    ),
}


@pytest.mark.parametrize("ending", ["SIGINT to all", "SIGKILL"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_end_at_a_moment(stage, tmp_path, moment, ending):
    """
    The trainer ends at once, and quietly, whatever it and its workers are doing.
    """
    script, blocked = MOMENTS[moment]
    with Play(stage, tmp_path, script) as program:
        end(program, ending, blocked)
        assert_ended(program, *ENDINGS[ending])


@pytest.mark.parametrize("ending", ["SIGINT to all", "fail()", "leave()", "close()"])
def test_end_with_a_stopped_nursery(stage, tmp_path, ending):
    """
    A nursery that is stopped, and tells neither of starts nor of ends, keeps nobody waiting.
    """
    script = f"""
warnings.simplefilter("ignore")
loader = make(Numbers(99, pause_s=0.1), restarts=9, timeout=1)
iterator = iter(loader)
os.kill(iterator._workers[0].pid, signal.SIGKILL)
next(iterator), next(iterator), next(iterator)
os.kill(iterator._nursery.process.pid, signal.SIGSTOP)
os.kill(iterator._workers[1].pid, signal.SIGKILL)
try:
    list(iterator)
except RuntimeError as error:
    timed_out = "timed out" in str(error)
def close():
    global iterator
    del iterator
    loader.close()
    leave()
say("blocked" if timed_out else "not timed out")
{ending if ending.endswith(")") else "time.sleep(1000)"}
"""
    with Play(stage, tmp_path, script) as program:
        end(program, ending, 1)
        assert_ended(program, *{**ENDINGS, "close()": ENDINGS["leave()"]}[ending])


# Pickled in the trainer, which can be interrupted; unpickled before a worker's own code runs.
@pytest.mark.parametrize(
    ("moment", "ending"), [("pickled", "SIGINT to all"), ("unpickled", "SIGKILL")]
)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_end_while_a_dataset_is_sent(stage, tmp_path, method, moment, ending):
    """
    A dataset that blocks on its way to a worker keeps neither Ctrl-C nor the workers' end away.
    """
    options = f"num_workers=1, multiprocessing_context={method!r}"
    script = f"next(iter(make(Pickling({moment!r}), {options})))"
    with Play(stage, tmp_path, script) as program:
        end(program, ending, 1)
        assert_ended(program, *ENDINGS[ending])


def test_interrupt_while_spawned_workers_start(stage, tmp_path):
    """
    Workers that are importing say nothing about Ctrl-C, nor does the trainer about their end.
    """
    script = """
iterator = iter(make(Numbers(9), multiprocessing_context="spawn"))
say("blocked")
next(iterator)
"""
    with Play(stage, tmp_path, script) as program:
        end(program, "SIGINT to all", 1)
        assert_ended(program, -signal.SIGINT, "KeyboardInterrupt")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_exit_while_workers_start(stage, tmp_path, method):
    """
    A program that ends right after iter() prints nothing, not even about how its workers ended.
    """
    script = f"""
signal.signal(signal.SIGTERM, ignore)
iterator = iter(make(Numbers(99), num_workers=3, multiprocessing_context={method!r}))
"""
    with Play(stage, tmp_path, script) as program:
        assert_ended(program, 0)


def test_other_processes_can_be_interrupted(stage, tmp_path):
    """
    What the user starts by the fork server does not inherit that interrupts are blocked.
    """
    script = """
context = multiprocessing.get_context("forkserver")
lock = context.Lock()  # whose tracker lets interrupts in when it starts
iterator = iter(make(Numbers(9), num_workers=1, multiprocessing_context=context))
process = context.Process(target=tell_interrupts)
process.start()
process.join()
tell_interrupts()
"""
    with Play(stage, tmp_path, script) as program:
        assert ["False", "False"] == program.lines()
        assert_ended(program, 0)


# Interrupts while something ends


def test_interrupt_of_a_drop_is_not_lost(stage, tmp_path):
    """
    Ctrl-C while a dropped iterator waits for its workers is raised where it was dropped.
    """
    script = """
loader = block_all([sleep, sleep])
iterator = iter(loader)
next(iterator), next(iterator)
loader.dataset.wait()
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    del iterator
    for _ in range(100):
        time.sleep(0.01)
except KeyboardInterrupt:
    say("interrupted")
"""
    with Play(stage, tmp_path, script) as program:
        assert ["blocked", "blocked", "interrupted"] == program.lines()
        assert_ended(program, 0)


def test_interrupt_of_a_fork_is_not_lost(stage, tmp_path):
    """
    Ctrl-C while workers are forked is raised by iter(), though hooks of forks swallow all errors.
    """
    script = """
def interrupt():
    if armed.pop():
        _thread.interrupt_main()

armed = [False, True, False]
os.register_at_fork(before=interrupt)
try:
    iter(make(Numbers(9), num_workers=3))
except KeyboardInterrupt:
    say("interrupted")
say(len(armed), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    with Play(stage, tmp_path, script) as program:
        assert ["interrupted", "1 True"] == program.lines()
        assert_ended(program, 0)


def test_interrupt_before_a_fork_leaves_no_trace(monkeypatch):
    """
    Ctrl-C that is raised while interrupts are being put off leaves them as they were.
    """

    def block_late(how, signals):
        before = set_mask(how, signals)
        if how == signal.SIG_BLOCK and signals:
            raise KeyboardInterrupt
        return before

    set_mask = signal.pthread_sigmask
    monkeypatch.setattr(signal, "pthread_sigmask", block_late)
    with pytest.raises(KeyboardInterrupt):
        processes.start(multiprocessing.get_context("fork").Process())

    assert signal.SIGINT not in set_mask(signal.SIG_BLOCK, ())
    assert signal.default_int_handler is signal.getsignal(signal.SIGINT)


def test_workers_have_the_trainers_handler_of_interrupts(stage, tmp_path):
    """
    What the user does about Ctrl-C is done in workers that are forked too, as in torch.
    """
    script = """
signal.signal(signal.SIGINT, ignore)
tell = lambda worker: say(signal.getsignal(signal.SIGINT) is ignore)
next(iter(make(Numbers(9), num_workers=1, worker_init_fn=tell)))
tell(None)
"""
    with Play(stage, tmp_path, script) as program:
        assert ["True", "True"] == program.lines()
        assert_ended(program, 0)


def test_interrupt_of_the_exit_is_quiet(stage, tmp_path):
    """
    Ctrl-C while the interpreter waits for its workers hastens their end.
    """
    script = """
loader = block_all([be_deaf, stop])
iterator = iter(loader)
next(iterator), next(iterator)
loader.dataset.wait()
signal.signal(signal.SIGALRM, signal.default_int_handler)
Finalize(None, signal.setitimer, args=[signal.ITIMER_REAL, 0.2], exitpriority=1 << 31)
"""
    with Play(stage, tmp_path, script) as program:
        assert ["blocked", "blocked"] == program.lines()
        assert_ended(program, 0)


@pytest.mark.parametrize("interrupted_before", [False, True])
def test_interrupt_of_a_leaving_worker_is_quiet(stage, tmp_path, interrupted_before):
    """
    A worker says nothing about Ctrl-C while it leaves, be it the first or the second.
    """
    script = f"""
def interrupt_later(worker):
    Finalize(None, os.kill, args=[os.getpid(), signal.SIGINT], exitpriority=2)
    Finalize(None, say, args=["left"], exitpriority=1)


loader = make(Numbers(99), num_workers=1, worker_init_fn=interrupt_later)
iterator = iter(loader)
next(iterator)
if {interrupted_before}:
    os.kill(iterator._workers[0].pid, signal.SIGINT)
    iterator._workers[0].join()
loader.close()
"""
    with Play(stage, tmp_path, script) as program:
        assert ["left"] == program.lines()
        assert_ended(program, 0)


# States at a normal exit

STATES = {
    "nothing": "",
    "held everywhere": """
iterator = iter(make(Numbers(99)))
held = [next(iterator) for _ in range(2)]
view = memoryview(next(iterator).numpy())
cycle = [iterator, next(iterator)]
cycle.append(cycle)
torch.held = Touching(next(iterator))
sys.held = Touching(next(iterator))
touching = Touching(next(iterator))
touching.itself = touching
atexit.register(lambda: held[0].sum())
last_actions.append(lambda: held[1].sum())
threading.Thread(target=held[0].sum).start()
""",
    "several loaders": """
iterators = [iter(make(Numbers(99), persistent_workers=bool(i % 2))) for i in range(4)]
held = [next(iterator) for iterator in iterators]
pairs = zip(iterators[0], iterators[1])
next(pairs)
""",
    "one worker": "iterator = iter(make(Numbers(99), num_workers=1)); held = next(iterator)",
    "64 workers": "iterator = iter(make(Numbers(999), num_workers=64)); held = next(iterator)",
    "a whole epoch, persistent": """
loader = make(Numbers(9), persistent_workers=True)
for batch in loader:
    held = batch
""",
    "a whole epoch, healing": """
for batch in make(Numbers(9), restarts=1):
    held = batch
""",
    "healing": "iterator = iter(make(Numbers(99), restarts=1)); held = next(iterator)",
    "posix backing": """
os.environ["SHMLOADER_BACKING"] = "posix"
iterator = iter(make(Numbers(99)))
held = next(iterator)
""",
    "a daemon thread waits": """
iterator = iter(make(Numbers(99, pause_s=1.0), restarts=1))
threading.Thread(target=next, args=[iterator], daemon=True).start()
last_actions.append(lambda: time.sleep(0.3))
time.sleep(0.1)
""",
    "another thread iterates on": """
def iterate():
    main = threading.main_thread()
    main.join()
    for _ in range(2):
        assert 9 == sum(1 for _ in make(Numbers(9)))

threading.Thread(target=iterate).start()
""",
    "a handler of exit iterates": """
iterator = iter(make(Numbers(9)))
next(iterator)
atexit.register(lambda: say(sum(1 for _ in iterator)))
atexit.register(lambda: say(sum(1 for _ in make(Numbers(9)))))
""",
    "the very last handler iterates": """
def iterate():
    try:
        sum(1 for _ in iterator)
    except RuntimeError as error:
        say(str(error)[:17])

iterator = iter(make(Numbers(99)))
next(iterator)
last_actions.append(iterate)
""",
    "a forked child ends first": """
iterator = iter(make(Numbers(12, pause_s=0.01), restarts=1))
loader = make(Numbers(12), persistent_workers=True)
assert 12 == sum(1 for _ in loader)
held = next(iterator)
if os.fork() == 0:
    sys.exit(0)
os.wait()
assert 11 == sum(1 for _ in iterator)
assert 12 == sum(1 for _ in loader)
""",
    "a forked child ends last": """
iterator = iter(make(Numbers(99)))
held = next(iterator)
if os.fork() == 0:
    time.sleep(0.2)
    assert 1 == len(list(make(Numbers(1))))
""",
    "multiprocessing's child iterates": """
def iterate():
    global iterator
    iterator = iter(make(Numbers(99)))
    next(iterator)

iterator = iter(make(Numbers(99)))
process = multiprocessing.get_context("fork").Process(target=iterate)
process.start()
process.join()
assert 0 == process.exitcode
""",
    "a loader in a worker": """
try:
    next(iter(make(InWorker(9))))
except AssertionError as error:
    say("daemonic processes" in str(error))
""",
    "children are not waited for": """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
iterators = []
thread = threading.Thread(target=lambda: iterators.append(iter(make(Numbers(99)))))
thread.start()
thread.join()
next(iterators[0])
""",
    "run as a module": """
import runpy
with open("module.py", "w") as module:
    module.write("iterator = iter(make(Numbers(99)))\\nheld = next(iterator)\\n")
runpy.run_path("module.py", {"make": make, "Numbers": Numbers}, run_name="__main__")
""",
    "an error is kept": """
iterator = iter(make(Numbers(99)))
held = next(iterator)
try:
    fail()
except ValueError as error:
    sys.last_value = error
    sys.last_traceback = error.__traceback__
""",
}
SAID = {
    "a handler of exit iterates": ["9", "8"],
    "the very last handler iterates": ["DataLoader worker"],
    "a loader in a worker": ["True"],
}


@pytest.mark.parametrize("state", STATES)
def test_exit_is_silent(stage, tmp_path, state):
    """
    A program that just ends prints nothing and leaves nothing, whatever is alive.
    """
    with Play(stage, tmp_path, STATES[state]) as program:
        assert_ended(program, 0)
        assert SAID.get(state, []) == program.lines()


MODULE_UNDER_PYTEST = """
from torch.utils.data import TensorDataset
import torch
from shmloader import DataLoader

loader = DataLoader(TensorDataset(torch.arange(99)), num_workers=2, persistent_workers=True)
iterator = iter(DataLoader(TensorDataset(torch.arange(99)), num_workers=2))
held = next(iterator)


def test_epoch():
    assert 99 == sum(1 for _ in loader)
"""


def test_exit_of_pytest_is_silent(tmp_path):
    """
    Loaders that live in modules under pytest end with it, and neither of them complains.
    """
    module = tmp_path / "test_module.py"
    module.write_text(MODULE_UNDER_PYTEST)
    strict = ["-X", "dev", "-W", "error"]
    done = subprocess.run(
        [sys.executable, *strict, "-m", "pytest", "-q", "-p", "no:cacheprovider", module],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": search_path()},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (0, "") == (done.returncode, done.stderr), done.stdout
    assert re.fullmatch(r"\.\s+\[100%\]\n1 passed in \S+s\n", done.stdout)
