"""For programs that end in every way: datasets that block, and checks of an end."""

import signal

from tests.helpers.stage import staged

HEAD = """\
import _thread, atexit, ctypes, gc, multiprocessing, os, signal, sys, threading, time, warnings

warnings.filterwarnings("ignore", "This DataLoader will create")
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)


def at_the_very_end():
    # Registered before all other handlers, so called after them.
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


# Ways to be blocked, and to stay so whatever messages a worker gets.


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


FLAGS = "-X", "faulthandler", "-W", "error"
stage = staged(HEAD, *FLAGS, scope="session", is_frozen=False)


def end(program, ending, blocked):
    """Wait until workers are blocked, then signal the trainer, unless it ends by itself."""
    for _ in range(blocked):
        assert "blocked" == program.line()
    if ending.endswith(" to all"):
        program.send_to_all(signal.Signals[ending.removesuffix(" to all")])
    elif ending.startswith("SIG"):
        program.send(signal.Signals[ending])


def assert_ended(program, status, last_line=""):
    """
    Check the end of a trainer: its status, nothing left, and no output but its own.

    Args:
        last_line: The end of the one traceback on stderr; "" for no output, None for any.
    """
    assert status == program.wait(), program.errors
    assert set() == program.left()
    if last_line is not None:
        assert last_line == "".join(program.errors.splitlines()[-1:]), program.errors
        assert bool(last_line) == program.errors.count("Traceback"), program.errors
    assert "Exception ignored" not in program.errors
    assert "Process " not in program.errors
