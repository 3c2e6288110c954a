"""Drive a loader through three epochs and write down everything that can be seen of it."""

import hashlib
import pickle
import random
import warnings
from collections import deque

import numpy as np
import torch

from .describe import describe, first_difference
from .samples import STAMP_KEYS, stamps_of

SEED = 20

# Batches taken of each epoch; the second is broken off before any worker runs out of samples,
# so that the samples that its workers still fetch do not depend on their speed.
EPOCHS = (None, 3, None)

# Batches that the trainer keeps at a time, as a training step does.
HELD_BATCHES = 3

END = object()


def record(case, loader_class):
    """Return the events of a run, each a dict, one list for each epoch."""
    seed_trainer()
    recorder = Recorder(torch.Generator().manual_seed(SEED))
    loader = recorder.observe("build", lambda: case.build(loader_class, recorder.generator))
    built = recorder.events
    epochs = [recorder.epoch(loader, taken) for taken in EPOCHS]
    return [built, *epochs, recorder.close(loader)]


def seed_trainer():
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


class Recorder:
    """
    Writes an event for each step of one loader.

    Each holds the state of the trainer's random number generators and the warnings of the step.
    """

    def __init__(self, generator):
        self.generator = generator
        self.events = []
        self.held = deque()

    def epoch(self, loader, taken):
        self.events = []
        self.observe("len", lambda: len(loader), describe)
        iterator = self.observe("iter", lambda: iter(loader))
        while taken != 0 and self.take(iterator):
            taken = taken and taken - 1
        if taken is None:
            self.take(iterator)
        del iterator
        self.observe("left", lambda: None)
        return self.events

    def take(self, iterator):
        batch = self.observe("next", lambda: next(iterator, END))
        if batch is END:
            self.events[-1]["event"] = "end"
            return False
        self.events[-1].update(seen_in(batch))
        self.hold(batch)
        return True

    def close(self, loader):
        self.events = []
        del loader
        self.observe("closed", lambda: None)
        self.release(len(self.held))
        return self.events

    def observe(self, name, action, describe_value=None):
        with warnings.catch_warnings(record=True, action="always") as caught:
            value = action()
        event = {"event": name, "rng": self.states(), "warnings": [*map(warning_text, caught)]}
        self.events.append(event | ({"value": describe_value(value)} if describe_value else {}))
        return value

    def states(self):
        return {
            "torch": digest(torch.get_rng_state().numpy().tobytes()),
            "generator": digest(self.generator.get_state().numpy().tobytes()),
            "numpy": digest(pickle.dumps(np.random.get_state())),
            "python": digest(repr(random.getstate()).encode()),
        }

    def hold(self, batch):
        self.held.append((batch, describe(batch)))
        self.release(len(self.held) - HELD_BATCHES)

    def release(self, count):
        for _ in range(count):
            batch, before = self.held.popleft()
            change = first_difference(before, describe(batch))
            assert change is None, f"a batch changed while the trainer held it: {change}"


def digest(state):
    return hashlib.sha256(state).hexdigest()[:12]


def warning_text(warning):
    return f"{warning.category.__name__}: {warning.message}"


def seen_in(batch):
    """
    Return the whole of a batch, and apart from each other what depends on its worker and the rest.
    """
    content = {key: describe(leaf) for key, leaf in batch.items() if key not in STAMP_KEYS}
    stamps = stamps_of(batch) if "seed" in batch else {}
    return {"batch": describe(batch), "content": content, "stamps": stamps}
