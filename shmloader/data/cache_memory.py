"""The shared memory of a cache of samples: how much it may be, and its way to workers."""

import contextlib
import itertools
import multiprocessing.context
import os
import time
from collections.abc import Iterator
from multiprocessing import reduction
from typing import Any

from torch.utils.data import get_worker_info

from shmloader.core import MISSING, Descriptor, SampleCache
from shmloader.core.unsendable import find_unsendable
from shmloader.errors import REFUSALS, OutOfSharedMemory, said, warn
from shmloader.memory import limits, policy, segment, ulimits
from shmloader.memory.account import account
from shmloader.stats import CacheStats

_numbers = itertools.count(1)


class CacheMemory:
    """
    Keeps samples by their indices, in one piece of shared memory for all processes that have it.

    It is inherited by a fork, and goes along when a process is started; it cannot be sent later.
    """

    def __init__(self, indices: int, max_bytes: int, label: str) -> None:
        """Make it, smaller than `max_bytes` with a warning, if less is left; label: for `stats`."""
        most_bytes = _within_limits(max_bytes)
        self._about = next(_numbers), label
        with _bounded("made", most_bytes):
            file = segment.create_object(most_bytes)
        with _bounded("mapped", most_bytes):
            self._open(file, indices, most_bytes, is_new=True)
        account().enter_keeper(self._samples)

    def _open(self, file: Descriptor, indices: int, most_bytes: int, is_new: bool) -> None:
        self._shape = indices, most_bytes
        with contextlib.closing(file):  # the cache has a descriptor of its own
            page_bytes = segment.page_bytes(file.number)
            self._samples = SampleCache(file.number, indices, most_bytes, page_bytes, is_new)
        self._room = _FreeMemory()
        self._says = True  # nothing was said yet about samples that cannot be kept

    def __getstate__(self) -> tuple[Any, ...]:
        if multiprocessing.context.get_spawning_popen() is None:
            raise TypeError(
                "a dataset of cached() reaches other processes only when they are started, and "
                "cannot be pickled at other times: pickle its .dataset, and call cached() in the "
                "other process"
            )
        return reduction.DupFd(self._samples.descriptor), self._shape, self._about

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        duplicate, (indices, most_bytes), self._about = state
        self._open(Descriptor(duplicate.detach()), indices, most_bytes, is_new=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "CacheMemory":
        return self  # one memory, however many datasets

    def __copy__(self) -> "CacheMemory":
        return self

    def find(self, index: int) -> Any:
        """Return a copy of a sample, or `MISSING`; both are counted."""
        return self._samples.find(index)

    def keep(self, index: int, sample: Any) -> Any:
        """Keep a sample if there is room. Returns a copy, as `find` does; itself if it has none."""
        try:
            return self._samples.keep(index, sample, self._room)
        except Exception as error:
            # Not the first of one that ends the loop: the sample itself is as good as without us.
            if self._samples.takes(index):
                self._samples.refuse(index)
                self._say_unkept(index, sample, error)
            return sample

    def _say_unkept(self, index: int, sample: Any, error: Exception) -> None:
        if not self._says:
            return
        self._says = False
        path, leaf = find_unsendable(sample, "sample", values_alone=True) or ("sample", sample)
        warn(
            f"cached() fetches sample {index} each time, because the sample cannot be stored: "
            f"{path} ({type(leaf).__name__}): {said(error)}. Have the dataset return tensors, "
            "arrays, numbers, strings or picklable objects, and make the rest in transform; later "
            "samples of this kind are fetched without a further warning"
        )

    def stats(self) -> CacheStats:
        """Count what all processes did."""
        hits, misses, entries, size, refused = self._samples.counts()
        most_bytes = self._samples.most_bytes
        return CacheStats(*self._about, hits, misses, entries, size, most_bytes, refused)

    def close(self) -> None:
        """Give the memory back now, in the process that made it; in others nothing happens."""
        self._samples.close()


class _FreeMemory:
    """Says whether a piece may be added, so that no process is killed for want of memory."""

    def __init__(self) -> None:
        total = limits.total_bytes()
        spared = (total or 0) // policy.CACHE_SPARES_PART
        self._left_bytes = min(spared, policy.CACHE_SPARES_MAX_BYTES)
        self._not_before_s = 0.0

    def __call__(self, length: int) -> bool:
        """Returns True if so many bytes may be added now."""
        now_s = time.monotonic()
        if now_s < self._not_before_s:
            return False
        left, worker = limits.available_bytes(), get_worker_info()
        reserve = 0 if worker is None else policy.reserve_bytes(worker.num_workers)
        if left is None or left - length >= self._left_bytes + reserve:
            return True
        self._not_before_s = now_s + policy.CACHE_LOOK_AGAIN_S
        return False


@contextlib.contextmanager
def _bounded(done: str, most_bytes: int) -> Iterator[None]:
    """Say what bounds the memory if it cannot be made or mapped, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in REFUSALS:
            raise
        raise OutOfSharedMemory(
            f"a cache of {most_bytes / 1e6:.1f} MB cannot be {done} ({error.strerror}): lower "
            "max_bytes, or raise the limits that `ulimit -a` and /dev/shm show"
        ) from error


def _within_limits(max_bytes: int) -> int:
    """Lower `max_bytes` to what there is, with a warning that says how much that is."""
    most_bytes, why = max_bytes, ""
    least = limits.available()
    if least is not None:
        left = max(0, least.bytes - account().coming_bytes)
        part = left * (policy.CACHE_LEAVES_PART - 1) // policy.CACHE_LEAVES_PART // limits.ranks()
        if part < most_bytes:
            most_bytes = part
            why = f"{left / 1e6:.1f} MB are left to process {os.getpid()} {least.where}"
            if limits.ranks() > 1:
                why += f", for each of {limits.ranks()} ranks"
    bound = ulimits.segment_bound()
    if bound is not None and bound.bytes < most_bytes:
        most_bytes, why = bound.bytes, bound.reason
    if why:
        warn(
            f"cached() takes at most {most_bytes / 1e6:.1f} MB instead of max_bytes={max_bytes} "
            f"({max_bytes / 1e6:.1f} MB), because {why}: samples that do not fit are fetched each "
            "time. Lower max_bytes, or raise that limit"
        )
    return most_bytes


__all__ = ["MISSING", "CacheMemory"]
