"""Processes that publish or subscribe, and say what they do; each is forked, watched and ended."""

import multiprocessing
import os
import signal
import warnings

import torch
from torch.utils.data import Dataset

import shmloader

LONGEST_WAIT_S = 30.0  # only a hang reaches it
NAME = "batches"
SEED = 11


class Rows(Dataset):
    """Rows with a draw of the worker, a number and a name."""

    def __init__(self, rows=48, length=500):
        self.rows = rows
        self.length = length

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        return torch.full((self.length,), float(index)) + torch.rand(1), index, f"row {index}"


class Fails(Rows):
    """The same, but one row is an error."""

    def __getitem__(self, index):
        if index == 17:
            raise ValueError("row 17 is damaged")
        return super().__getitem__(index)


def loader_of(dataset=None, **options):
    """Make the loader that is published; each call makes one that gives the same batches."""
    generator = torch.Generator().manual_seed(SEED)
    given = {"batch_size": 4, "shuffle": True, "num_workers": 2, **options}
    return shmloader.DataLoader(dataset or Rows(), generator=generator, **given)


def as_values(batch):
    """Return what a batch holds, to be compared."""
    values, numbers, names = batch
    return values.tolist(), numbers.tolist(), names


def epochs_of(batches, count):
    """Read some epochs, as values."""
    return [[as_values(batch) for batch in batches] for _ in range(count)]


def publishes(say, hear, *, subscribers=1, dataset=None, options=None, **arguments):
    """Publish, and say that it is over."""
    loader = loader_of(dataset, **(options or {}))
    shmloader.publish(loader, NAME, subscribers=subscribers, **arguments)
    return "over"


def reads(say, hear, *, epochs=1):
    """Subscribe, and return what came."""
    with shmloader.subscribe(NAME, timeout=LONGEST_WAIT_S) as batches:
        return epochs_of(batches, epochs)


def reads_by_word(say, hear):
    """Subscribe, and take one batch at each word that is heard; None ends it."""
    with shmloader.subscribe(NAME, timeout=LONGEST_WAIT_S) as batches:
        iterator = iter(batches)
        while hear() is not None:
            say(as_values(next(iterator)))
    return "left"


def quietly(part):
    """Let an actor warn of batches that it copies out."""

    def plays(say, hear, **arguments):
        with warnings.catch_warnings(action="ignore", category=shmloader.RetentionWarning):
            return part(say, hear, **arguments)

    return plays


class Actor:
    """
    A forked process that plays a part.

    Attributes:
        pid: The process.
    """

    def __init__(self, part, **arguments):
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_play, args=(ours, theirs, part, arguments))
        self._process.start()
        self.pid = self._process.pid
        self._pipe = ours
        theirs.close()

    def tell(self, word):
        """Say a word to it."""
        self._pipe.send(word)

    def hear(self):
        """Wait for what it says, or returns, or for (error's class, its text) if it raises."""
        if not self._pipe.poll(LONGEST_WAIT_S):
            raise TimeoutError(f"process {self.pid} says nothing")
        return self._pipe.recv()

    def ask(self):
        """Have it take one batch."""
        self.tell("next")
        return self.hear()

    def send(self, number):
        """Send it a signal."""
        os.kill(self.pid, number)

    def end(self):
        """Kill it, if it has not ended."""
        if self._pipe.closed:
            return
        if self._process.is_alive():
            self.send(signal.SIGKILL)
        self._process.join()
        self._process.close()
        self._pipe.close()


def _play(ours, pipe, part, arguments):
    ours.close()
    try:
        said = part(pipe.send, pipe.recv, **arguments)
    except Exception as error:
        said = type(error).__name__, str(error)
    pipe.send(said)
