"""
What one process does with samples that raise: leaves them out, warns, counts, and gives up.

`tolerant()` makes the datasets that do so. Here is what a loader has to know of them.
"""

import os
import reprlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from torch.utils.data import Subset, get_worker_info

from shmloader.errors import (
    EmptyBatch,
    LeftOutWarning,
    ShmloaderError,
    add_note,
    asked,
    entries_of,
    said,
    warn,
)
from shmloader.samples.datasets import made_of

_WARN_AFTER_S = 1.0
_TEXT = 300  # characters of an error's text
# torch's handler of SIGCHLD raises in whatever runs, so perhaps in a dataset.
_HANDLER = "torch.utils.data._utils.signal_handling"

# Called for each sample that this process leaves out; a worker of ours counts there.
listeners: list[Callable[[], None]] = []


class Tolerance:
    """
    Leaves out samples in one process; in a forked or started one it begins anew.

    Attributes:
        label: The dataset's class.
    """

    def __init__(self, label: str, most_in_a_row: int) -> None:
        """Tolerate so many samples in a row that raise."""
        self.label = label
        self._most = most_in_a_row
        self._pid = os.getpid()
        self._begin()

    def _begin(self) -> None:
        self._in_a_row = self._count = 0
        self._warned_at = -float("inf")

    @property
    def count(self) -> int:
        """Samples that this process has left out."""
        return self._count if self._pid == os.getpid() else 0

    def kept(self) -> None:
        """A sample did not raise."""
        self._in_a_row = 0

    def leaves_out(self, asked: Any, error: Exception) -> bool:
        """
        Leave out a sample that raised.

        Args:
            asked: The index of the dataset, or what else says which sample.

        Returns:
            False if the error must be raised: too many in a row did, or it is not the sample's.
        """
        if not is_of_a_sample(error):
            return False
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._begin()
        self._in_a_row += 1
        if self._in_a_row > self._most:
            add_note(
                error,
                f"tolerant() skipped the {self._most} samples before this one, which raised too; "
                f"it skips at most most_in_a_row={self._most}",
            )
            return False
        self._count += 1
        for listener in listeners:
            listener()
        self._warn(asked, error)
        return True

    def _warn(self, index: Any, error: Exception) -> None:
        now = time.monotonic()
        if now - self._warned_at < _WARN_AFTER_S:
            return
        self._warned_at = now
        worker, which = get_worker_info(), asked(index, reprlib.repr, "...")
        where = "" if worker is None else f"worker {worker.id}: "
        warn(
            f"{where}{self.label}[{which}] is skipped, {self._count} so far: "
            f"{said(error):.{_TEXT}}",
            LeftOutWarning,
        )

    def collect(
        self,
        asked: Iterable[Any],
        fetch: Callable[[Any], Any],
        index_of: Callable[[Any], Any] = lambda asked: asked,
    ) -> list[Any]:
        """
        Fetch the samples of a batch one by one.

        Args:
            asked: One for each sample.
            fetch: Returns what it has for one of these, or raises.
            index_of: Says which sample one of these is.

        Returns:
            The samples that did not raise.

        Raises:
            EmptyBatch: All raised.
            Exception: As one that cannot be left out.
        """
        samples: list[Any] = []
        last: Exception | None = None
        for each in asked:
            try:
                sample = fetch(each)
            except Exception as error:
                if not self.leaves_out(index_of(each), error):
                    raise
                last = error
            else:
                self.kept()
                samples.append(sample)
        if last is not None and not samples:
            raise EmptyBatch(
                f"all samples of a batch of {self.label} raised, and tolerant() skipped them: "
                "shmloader.DataLoader continues with the next batch; with torch's loader, catch "
                "this error around next()"
            ) from last
        return samples


class Tolerating:
    """Mixed into a dataset that leaves out samples, for loaders that ask more of it."""

    dataset: Any
    tolerance: Tolerance


class Single:
    """A dataset that leaves out samples, as a loader without batches asks it: one is a batch."""

    def __init__(self, dataset: Tolerating) -> None:
        """Ask a dataset for one sample at a time."""
        self.dataset = dataset

    def __getitem__(self, index: Any) -> Any:
        return self.dataset.tolerance.collect([index], self.dataset.dataset.__getitem__)[0]


def single(dataset: Any) -> Any:
    """Return a dataset as a loader without batches must ask it: as it is, if none is left out."""
    has_batches = hasattr(type(dataset), "__getitems__")  # others are iterable
    return Single(dataset) if has_batches and tolerance_of(dataset) is not None else dataset


def tolerance_of(dataset: Any) -> Tolerance | None:
    """Return what leaves out the samples that a loader asks a dataset for; None: nothing does."""
    return dataset.tolerance if issubclass(type(dataset), Tolerating) else None


def left_out_here(dataset: Any) -> int:
    """Count what a dataset, and those that it is made of, have left out in this process."""
    # By real types: a dataset may be a proxy of which nothing may be asked.
    tolerating = [each for each in made_of(dataset) if issubclass(type(each), Tolerating)]
    return sum(each.tolerance.count for each in tolerating)


def takes_indices_in_turn(dataset: Any) -> bool:
    """Returns True if no code of the user's sees a request for many samples."""
    while type(dataset) is Subset:
        dataset = dataset.dataset  # whose __getitems__ is torch's own loop over the request
    return not getattr(dataset, "__getitems__", None)


def is_fetched_singly(dataset: Any, is_iterable: bool) -> bool:
    """Returns True if no code of the user's sees the request: torch takes its indices in turn."""
    if is_iterable:
        return True
    if tolerance_of(dataset) is not None:
        dataset = dataset.dataset  # which is asked as without what is around it
    return takes_indices_in_turn(dataset)


def is_of_a_sample(error: Exception) -> bool:
    """Returns False for errors of shmloader, and for torch's of a worker of another loader."""
    *_, last = (None, *entries_of(error))
    is_of_a_death = last is not None and last.tb_frame.f_globals.get("__name__") == _HANDLER
    return not is_of_a_death and not isinstance(error, ShmloaderError)
