"""
Datasets whose workers die at points that a test chooses, with random draws in their samples.

A script says at which points processes die and how often. Deaths are noted in a folder, because the
replacement of a dead worker must know that this death has happened.
"""

import ctypes
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import contextmanager

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from tests.helpers.programs import wait_until


class Doom(BaseException):
    """An exception that no code of the loader expects."""


def raise_doom():
    raise Doom("unhandled")


WAYS_TO_DIE = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "sys.exit(0)": lambda: sys.exit(0),
    "os._exit(7)": lambda: os._exit(7),
    "BaseException": raise_doom,
}

WAYS_TO_HANG = {
    "sleep": lambda: time.sleep(1000),
    "C code that keeps Python's lock": lambda: ctypes.PyDLL(None).sleep(1000),
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


class Script:
    """
    At which points to die, and how often at each.

    Args:
        folder: Where the deaths are noted.
        points: Names of points; one that is listed twice kills two processes.
        later: Points that count from the first call of `arm` on.
        way: A key of WAYS_TO_DIE or WAYS_TO_HANG.
    """

    def __init__(self, folder, *points, later=(), way="SIGKILL"):
        self.folder = str(folder)
        self.deaths = Counter(points) + Counter(later)
        self.delivery = way
        self.hand = f"{folder}/hand"
        self.waiting = [self.note(point, number) for point, number in numbered(later)]
        for note in self.waiting:
            open(note, "x").close()

    def note(self, point, number):
        """The file that notes a death at a point."""
        return f"{self.folder}/{point} {number}"

    def arm(self, *_):
        """Let the later points count."""
        while self.waiting:
            os.unlink(self.waiting.pop())

    @contextmanager
    def held_back(self):
        """While the context lasts, a process that must die waits before it does."""
        open(self.hand, "x").close()
        try:
            yield
        finally:
            os.unlink(self.hand)

    def __call__(self, point):
        """Die here, if the script says so."""
        for number in range(self.deaths.get(point, 0)):
            try:
                os.close(os.open(self.note(point, number), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            assert wait_until(lambda: not os.path.exists(self.hand))
            {**WAYS_TO_DIE, **WAYS_TO_HANG}[self.delivery]()

    @property
    def left(self):
        """The points whose deaths have not happened yet, with their numbers."""
        every = numbered(self.deaths.elements())
        return [each for each in every if not os.path.exists(self.note(*each))]


def numbered(points):
    """Number the times that each point occurs."""
    return [(point, number) for point, times in Counter(points).items() for number in range(times)]


def draws(*facts):
    """Make a sample: (number of facts + 3,) float64, the last three drawn from every generator."""
    drawn = [random.random(), numpy.random.rand(), torch.rand(1).item()]
    return torch.tensor([*facts, *drawn], dtype=torch.float64)


class Mortal(Dataset):
    """A map-style dataset; points are "item i", before its draws, and "drawn i", after them."""

    count = 24

    def __init__(self, script=bool, count=None):
        self.script = script
        self.count = count or self.count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.script(f"item {index}")
        sample = draws(index)
        self.script(f"drawn {index}")
        if index == 1000:
            raise LookupError(f"no sample {index}")
        return sample


class MortalStream(IterableDataset):
    """
    An iterable dataset; points are "item w.i" and "drawn w.i", of worker w.

    Iterating draws twice: at once, when an epoch begins, and again before the first sample.
    """

    def __init__(self, script, count=17):
        self.script = script
        self.count = count

    def __iter__(self):
        return self.samples(0, random.randrange(1000))

    def samples(self, start, eager):
        worker = get_worker_info().id
        self.script(f"begin {worker}")
        lazy = numpy.random.randint(1000)
        for index in range(start, self.count + 4 * worker):
            self.script(f"item {worker}.{index}")
            sample = draws(worker, index, eager, lazy)
            self.script(f"drawn {worker}.{index}")
            yield sample


class Remembering(MortalStream):
    """A stream that saves and restores its position, so it must not be replayed."""

    def __init__(self, script, count=17):
        super().__init__(script, count)
        self.position = self.restored_at = 0
        self.eager = self.restored_eager = None

    def __iter__(self):
        start, self.restored_at = self.restored_at, 0
        eager, self.restored_eager = self.restored_eager, None
        self.eager = random.randrange(1000) if eager is None else eager
        return self.remembered(start)

    def remembered(self, start):
        for index in range(start, self.count):
            self.script(f"item {get_worker_info().id}.{index}")
            self.position = index + 1
            yield draws(get_worker_info().id, index, self.eager)

    def state_dict(self):
        self.script(f"state {get_worker_info().id}.{self.position}")
        return {"position": self.position, "eager": self.eager}

    def load_state_dict(self, state):
        self.position = self.restored_at = state.pop("position")
        self.restored_eager = state.pop("eager")


class Collate:
    """Collates with draws of its own; points are "collate i", i the first sample's first number."""

    def __init__(self, script):
        self.script = script

    def __call__(self, samples):
        self.script(f"collate {int(samples[0][0])}")
        return torch.cat([torch.stack(samples).flatten(), draws()])


class Init:
    """
    Sets a worker up, with draws; points are "init w". Raises in the workers that a test names.
    """

    def __init__(self, script, raises_in=()):
        self.script = script
        self.raises_in = raises_in

    def __call__(self, worker):
        self.script(f"init {worker}")
        draws()
        if worker in self.raises_in:
            raise LookupError(f"no worker {worker} here")
