"""The samples of golden datasets: each names its worker, its turn and its draws."""

import itertools
import random
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import get_worker_info

# Workers count the samples that they made; the trainer makes none, so each starts at 0.
made_here = itertools.count()

# These leaves depend on the worker that happened to make the sample; the others do not.
STAMP_KEYS = ("worker", "seed", "nth", "python", "numpy", "torch")


class Point(NamedTuple):
    """A namedtuple of a tensor and a bool, to see that the type survives."""

    place: torch.Tensor
    is_third: bool


def make_sample(index):
    """Make sample `index`, drawing once from each random number generator of this worker."""
    info = get_worker_info()
    return {
        "index": index,
        "worker": info.id,
        "seed": info.seed,
        "nth": next(made_here),
        "python": random.random(),
        "numpy": np.random.random(3).astype(np.float32),
        "torch": torch.rand(2, 3),
        "text": f"sample {index}",
        "point": Point(torch.full((2,), index), index % 3 == 0),
        "pair": (np.float32(index), [index, -index]),
    }


def stamps_of(batch):
    """
    Return {(seed, nth): (worker, draws)} for each sample of a batch or for a single sample.

    A worker draws equally often for each sample, so the draws are a function of the key alone.
    """
    if not isinstance(batch["text"], str):
        return dict(map(stamp_at, itertools.repeat(batch), range(len(batch["text"]))))
    return dict([stamp_of({key: batch[key] for key in STAMP_KEYS})])


def stamp_at(batch, position):
    return stamp_of({key: batch[key][position] for key in STAMP_KEYS})


def stamp_of(sample):
    worker, seed, nth, *draws = (torch.as_tensor(sample[key]).tolist() for key in STAMP_KEYS)
    return (seed, nth), (worker, draws)
