"""A dataset whose workers run pure Python loops, and the board on which they note what they do."""

import mmap
import time

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

_ELEMENTS = 1000  # of each leaf


class Board:
    """
    What workers tell the trainer beside the loader: when a batch was made, which workers loop.

    Each element has one writer; it lies in memory that forked workers share.
    """

    def __init__(self, batches: int, workers: int):
        memory = np.frombuffer(mmap.mmap(-1, 8 * (batches + workers)), np.float64)
        self.made_at = memory[:batches]  # on time.perf_counter; 0 before
        self.looping = memory[batches:]  # 1 while worker n is in its loop

    def is_ripe(self, turn: int, ripe_s: float) -> bool:
        """Returns True if this batch was made at least so many seconds ago."""
        return 0 < self.made_at[turn] < time.perf_counter() - ripe_s


class Loops(Dataset):
    """
    Batch-sized samples; each takes a loop that never gives the GIL away by itself.

    Args:
        asleep: Sleep as long instead, for comparison.
    """

    def __init__(self, batches: int, leaves: int, loop_s: float, workers: int, asleep: bool):
        self.board = Board(batches, workers)
        self._batches, self._leaves, self._loop_s = batches, leaves, loop_s
        self._spend = time.sleep if asleep else _loop

    def __len__(self) -> int:
        return self._batches

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        worker = get_worker_info().id
        self.board.looping[worker] = 1
        self._spend(self._loop_s)
        self.board.looping[worker] = 0
        batch = self.make(index)
        self.board.made_at[index] = time.perf_counter()
        return batch

    def make(self, index: int) -> list[torch.Tensor]:
        """Make a batch with nothing spent on it."""
        return [torch.full((_ELEMENTS,), index + leaf) for leaf in range(self._leaves)]

    def is_right(self, turn: int, batch: list) -> bool:
        """Returns True if each element of a batch is as this dataset made it."""
        return len(batch) == self._leaves and all(
            leaf.shape == (_ELEMENTS,) and bool((leaf == turn + place).all())
            for place, leaf in enumerate(batch)
        )


def _loop(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
