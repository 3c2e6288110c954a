"""Samples of which some take much longer than the others, and how long each takes."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.utils.data import Dataset, Sampler

WORKERS = 4
BATCH = 8
STEP_S = 0.008
FIRST, COUNTED = 64, 112  # batches: what is asked for at the start is not counted
_SEED = 15
_COLUMNS = 16
_MOST_S = 0.150


@dataclass(frozen=True)
class Tail:
    """
    A way in which samples differ.

    Attributes:
        name: What it is.
        draw: Makes the seconds of so many samples.
        settings: Pairs of in_order and prefetch_factor that are measured.
    """

    name: str
    draw: Callable[[random.Random, int], list[float]]
    settings: tuple[tuple[bool, int], ...]

    def samples_s(self) -> list[float]:
        """Seconds of each sample: the same in each run."""
        return self.draw(random.Random(_SEED), (FIRST + COUNTED) * BATCH)

    def batches_s(self) -> list[float]:
        """Seconds of each batch."""
        samples = self.samples_s()
        return [sum(samples[at : at + BATCH]) for at in range(0, len(samples), BATCH)]


def _one_in_100(draw: random.Random, count: int) -> list[float]:
    """One of each hundred, anywhere in it, takes 50 times longer."""
    slow = {start + draw.randrange(100) for start in range(0, count, 100)}
    return [0.100 if number in slow else 0.002 for number in range(count)]


def _pareto(draw: random.Random, count: int) -> list[float]:
    return [min(0.001 * draw.paretovariate(1.3), _MOST_S) for _ in range(count)]


def _equal(draw: random.Random, count: int) -> list[float]:
    """All alike, and too slow by a tenth: workers that began together are ready together."""
    return [1.1 * STEP_S * WORKERS / BATCH] * count


TAILS = (
    Tail("one in 100", _one_in_100, tuple((o, p) for o in (True, False) for p in (2, 4, 8, 16))),
    Tail("pareto", _pareto, ((True, 2), (True, 8), (False, 2))),
    Tail("equal", _equal, ((True, 2),)),
)


class Samples(Dataset):
    """
    Rows of their own index, (16,) int64; one more at the end takes no time.

    A batch sleeps once, for all of its samples: each wake-up comes some 60 us late.
    """

    def __init__(self, samples_s: list[float]) -> None:
        self._samples_s = [*samples_s, 0.0]

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        time.sleep(sum(self._samples_s[index] for index in indices))
        return [row_of(index) for index in indices]


def row_of(index: int) -> torch.Tensor:
    return torch.arange(_COLUMNS) * 1_000_003 + index


class Requests(Sampler):
    """The requests of an epoch; `is_warm` turns from those that start the workers to the others."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self.is_warm = False

    def __iter__(self) -> Iterator[list[int]]:
        if not self.is_warm:
            return iter([[self._samples]] * 2 * WORKERS)
        return (list(range(at, at + BATCH)) for at in range(0, self._samples, BATCH))
