"""
Draws that depend on the batch alone: `seed_by="batch"`, and `rng()`.

Before each batch the three global generators are seeded from the loader's base seed, the number of
the epoch and the number of the batch in it; a sample's own generator is made from these and the
sample's position. So no draw depends on who fetches, or on how many workers there are.

The recipe must never change under its number: results that people have published depend on it.
"""

import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy
import torch

from shmloader.core import Samples
from shmloader.samples import random_state

RECIPE = 1
_PERSON = b"shmloader %d" % RECIPE
_NUMBERS = struct.Struct("<4Q")  # base seed, epoch, batch, position

# In place of a sample's position: a dataset was asked for the whole batch, or it is collated.
_WHOLE_BATCH = 2**64 - 1
_COLLATING = 2**64 - 2


def _digest(generator: bytes, numbers: tuple[int, int, int], position: int) -> bytes:
    """Mix 32 bytes of seed for one of the generators."""
    packed = _NUMBERS.pack(*numbers, position)
    return blake2b(packed, digest_size=32, salt=generator, person=_PERSON).digest()


def seed_generators(numbers: tuple[int, int, int]) -> None:
    """Seed `random`, `numpy.random` and torch's CPU generator for a batch."""
    random.seed(int.from_bytes(_digest(b"random", numbers, _WHOLE_BATCH), "little"))
    numpy.random.seed(numpy.frombuffer(_digest(b"numpy", numbers, _WHOLE_BATCH), "<u4"))
    # Not torch.manual_seed(), which notes the seed for every accelerator, with a stack trace.
    seed = int.from_bytes(_digest(b"torch", numbers, _WHOLE_BATCH)[:8], "little")
    torch.default_generator.manual_seed(seed)


class Turn:
    """A thread's part in fetching one batch: what `rng()` is made from there."""

    def __init__(
        self,
        numbers: tuple[int, int, int],  # base seed, the epoch's, the batch's in it
        samples: Samples | None = None,  # knows the position of the one that is fetched
        position: int = _WHOLE_BATCH,  # of the one that this thread fetches, instead
    ) -> None:
        self._numbers = numbers
        self._samples = samples
        self._position = position
        self._is_whole = samples is None and position == _WHOLE_BATCH
        self._made_at = -1
        self._generator: numpy.random.Generator | None = None

    def collate(self) -> None:
        """The samples are there: from now on draws are the collate function's."""
        self._samples, self._position, self._is_whole = None, _COLLATING, False

    def at(self, position: int | None) -> None:
        """Of the whole batch that was asked for, a sample is fetched now; None: that is over."""
        if self._is_whole:
            self._position = _WHOLE_BATCH if position is None else position

    def rng(self) -> numpy.random.Generator:
        """The generator of the sample that is fetched now: one for all calls until the next."""
        position = self._now_at()
        if position != self._made_at or self._generator is None:
            seed = int.from_bytes(_digest(b"rng", self._numbers, position), "little")
            self._generator = numpy.random.Generator(numpy.random.PCG64(seed))
            self._made_at = position
        return self._generator

    def _now_at(self) -> int:
        samples = self._samples
        return self._position if samples is None else samples.position - 1

    def save(self) -> Callable[[], None]:
        """Save where the generator of this sample is. Returns what puts it back, or forgets it."""
        generator = self._generator if self._made_at == self._now_at() else None
        if generator is None:
            return self._forget
        state = generator.bit_generator.state

        def put_back() -> None:
            self._generator = generator
            generator.bit_generator.state = state

        return put_back

    def _forget(self) -> None:
        self._generator = None


@contextmanager
def taking(turn: Turn | None) -> Iterator[None]:
    """Let `rng()` on this thread be that of a turn; a loader inside of a dataset nests."""
    before, random_state.here.turn = random_state.here.turn, turn
    try:
        yield
    finally:
        random_state.here.turn = before


def rng() -> numpy.random.Generator:
    """
    Return the random generator of the sample that is being fetched on this thread.

    For datasets and collate functions of a loader with `seed_by="batch"`. Its random numbers depend
    only on the base seed, the epoch, the batch and the sample's position in it: not on the worker,
    the thread, or other samples. A collate function has its own generator for its batch, and so has
    a dataset's `__getitems__`.

    Returns:
        The same `numpy.random.Generator` until the next sample; do not use it for longer.

    Raises:
        RuntimeError: No batch of such a loader is being fetched on this thread.
    """
    turn = random_state.here.turn
    if turn is None:
        raise RuntimeError(
            "shmloader.rng() gives a generator while a batch is fetched by a loader with "
            'seed_by="batch", and none is being fetched here: pass seed_by="batch" to '
            "shmloader.DataLoader (with num_workers=0, too), or call rng() inside the dataset or "
            "the collate function"
        )
    return turn.rng()


def number_of_attempt(worker: int, workers: int, attempt: int) -> int:
    """
    The number that seeds a batch of an iterable dataset.

    Its requests name no samples. What a worker answers depends on how many of them it answered
    before; not on when the trainer learnt that another worker is at its end.
    """
    return worker + workers * attempt


def listed(request: Any) -> list[Any]:
    """Make a list of a request of any kind whose samples are fetched one by one, to count them."""
    return request if type(request) is list else list(request)


class SeededFetcher:
    """A fetcher of torch's that seeds before each batch; it stands in for that fetcher."""

    def __init__(self, fetcher: Any, base_seed: int) -> None:
        self._fetcher = fetcher
        self._base_seed = base_seed
        self._collate_fn: Callable[[Any], Any] = fetcher.collate_fn
        self._turn: Turn | None = None
        fetcher.collate_fn = self._collate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fetcher, name)

    @property
    def ended(self) -> bool:
        """True if the iterator of an iterable dataset ended within the last batch."""
        return bool(self._fetcher.ended)

    @ended.setter
    def ended(self, ended: bool) -> None:
        self._fetcher.ended = ended

    def fetch_as(self, numbers: tuple[int, int], request: Any) -> Any:
        """Fetch and collate one batch; numbers: its epoch's, and its own in the epoch."""
        seeds = (self._base_seed, *numbers)
        samples = request if isinstance(request, Samples) else None
        self._turn = Turn(seeds, samples)
        seed_generators(seeds)
        with taking(self._turn):
            return self._fetcher.fetch(request)

    def collate_as(self, numbers: tuple[int, int], samples: Any) -> Any:
        """Collate samples that were fetched elsewhere; numbers: as for `fetch_as`."""
        seeds = (self._base_seed, *numbers)
        self._turn = Turn(seeds)
        seed_generators(seeds)
        with taking(self._turn):
            return self._collate(samples)

    def _collate(self, samples: Any) -> Any:
        if self._turn is not None:
            self._turn.collate()
        return self._collate_fn(samples)
