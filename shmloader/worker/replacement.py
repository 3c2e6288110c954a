"""
A worker in the place of one that died: it becomes what that one was at its last answer.

From the dataset as it was when the iterator was made it gets there in the same steps: the user's
init function, the beginning of the epoch with the random states of then, and what was fetched in
it, or the state that the dataset tells. Last come the random states of the last answer.
"""

from collections.abc import Iterator
from dataclasses import replace

from torch._utils import ExceptionWrapper

from shmloader.worker import snapshot
from shmloader.worker.loop import Worker, work_as
from shmloader.worker.snapshot import Position


def run(assignment, worker_id, progress):
    """Be a worker from where another one left off, until the trainer says quit, or is gone."""
    work_as(ReplacementWorker, replace(assignment, worker_id=worker_id), progress)


class ReplacementWorker(Worker):
    """A worker that takes over."""

    def __init__(self, assignment, progress):
        """
        Take what it is started with.

        Args:
            progress: Of the worker before, a `shmloader.core.Progress`.
        """
        super().__init__(assignment)
        self._progress = progress

    @property
    def _first_shared_seed(self):
        return self._progress.seed

    def _initialise(self):
        progress = self._progress
        position = snapshot.position_of(progress.latest) if progress.answered else Position()
        try:
            self._run_init_function()
        except Exception:
            # Where there was an answer, the worker before has answered with it.
            if progress.latest is None:
                self._init_error = ExceptionWrapper(where=self._where)
                return
        # Without an answer, what entering the epoch draws is not known yet.
        if not progress.answered or (position.has_begun and not progress.skips_epoch):
            self._try_to_enter_epoch(position, progress.epoch)
        self._position = position
        # Without an answer in this epoch, what stands is what beginning it has left.
        if progress.answered:
            snapshot.restore_random_states(progress.latest)

    def _try_to_enter_epoch(self, position, epoch_snapshot):
        try:
            self._enter_epoch_at(position, epoch_snapshot)
        except Exception:
            self._init_error = ExceptionWrapper(where=self._where)

    def _enter_epoch_at(self, position, epoch_snapshot):
        if epoch_snapshot is not None:
            snapshot.restore_random_states(epoch_snapshot)
        # One that is its own iterator may go back to its start in __iter__, so it comes after that.
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

    def _replay(self, position):
        """Fetch again what was answered, for what it does to the iterator."""
        for _ in range(position.attempts):
            try:
                self._fetcher.fetch(position.index)
            except StopIteration:
                return
            except Exception:
                # The worker before has answered with it.
                continue
