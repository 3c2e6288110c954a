"""
A worker that replaces a dead one: it takes the state that the dead worker had at its last answer.

From the dataset as it was when the iterator was made it gets there in the same steps: the user's
init function, the beginning of the epoch with the random states of that moment, and the fetches of
this epoch or the dataset's state_dict(). Last come the random states of the last answer.
"""

from collections.abc import Iterator
from dataclasses import replace

from torch._utils import ExceptionWrapper

from shmloader.core import Progress
from shmloader.worker import snapshot
from shmloader.worker.loop import Worker, WorkerSpec, work_as
from shmloader.worker.snapshot import Position


def run(spec: WorkerSpec, worker_id: int, progress: Progress) -> None:
    """Be a worker from where a dead one left off, until the trainer says quit, or is gone."""
    work_as(ReplacementWorker, replace(spec, worker_id=worker_id), progress)


class ReplacementWorker(Worker):
    """A worker that takes over."""

    def __init__(self, spec: WorkerSpec, progress: Progress) -> None:
        """Keep what it is started with, and how far the dead worker was."""
        super().__init__(spec)
        self._progress = progress

    @property
    def _first_shared_seed(self) -> int | None:
        return self._progress.seed

    def _initialise(self) -> None:
        progress = self._progress
        # Without an answer in this epoch, what beginning the epoch draws is not known yet.
        latest = progress.latest if progress.answered else None
        position = Position() if latest is None else snapshot.position_of(latest)
        try:
            self._run_init_function()
        except Exception:
            # If there was an answer, the dead worker has answered with this error.
            if not progress.has_answered:
                self._init_error = ExceptionWrapper(where=self._where)
            if latest is None and not progress.has_resumed:
                return
        if latest is None or (position.has_begun and not progress.skips_epoch):
            self._try_to_enter_epoch(position, progress.epoch)
        position.grown = None
        self._position = position
        if latest is not None:
            snapshot.restore_random_states(latest)

    def _try_to_enter_epoch(self, position: Position, epoch_snapshot: bytes | None) -> None:
        try:
            self._enter_epoch_at(position, epoch_snapshot)
        except Exception:
            self._init_error = ExceptionWrapper(where=self._where)

    def _enter_epoch_at(self, position: Position, epoch_snapshot: bytes | None) -> None:
        if epoch_snapshot is not None:
            snapshot.restore_random_states(epoch_snapshot)
        # A dataset that is its own iterator may go back to its start in __iter__: restore after it.
        is_iterator = isinstance(self._dataset, Iterator)
        if position.dataset is not None and not is_iterator:
            self._dataset.load_state_dict(position.dataset)
        self._begin_epoch()
        if position.dataset is not None and is_iterator:
            self._dataset.load_state_dict(position.dataset)
        if position.iterator is not None:
            self._fetcher.dataset_iter.load_state_dict(position.iterator)
        elif position.dataset is None and self._is_iterable:
            self._replay(position)

    def _replay(self, position: Position) -> None:
        """Fetch again what was answered, to bring the iterator to its position."""
        for _ in range(position.attempts):
            try:
                self._fetcher.fetch(position.index)
            except StopIteration:
                return
            except Exception:
                # The dead worker has answered with this error.
                continue
