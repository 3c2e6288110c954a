"""
A worker that takes the place of another: it takes the state that this had at its last answer.

The other one died, or belonged to a run that is resumed.

From the dataset as it was when the iterator was made it gets there in the same steps: the user's
init function, the beginning of the epoch with the random states of that moment, and the fetches of
this epoch or the dataset's state_dict(). Last come the random states of the last answer.
"""

import functools
from dataclasses import replace
from typing import Any

from torch._utils import ExceptionWrapper

from shmloader.core import Progress, Samples
from shmloader.worker import restoring, snapshot
from shmloader.worker.loop import Worker, WorkerSpec, work_as
from shmloader.worker.seeds import listed, number_of_attempt
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
    def _needs_seeds(self) -> bool:
        return True

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
            snapshot.restore_random_states(latest, self._as_seeded)

    def _try_to_enter_epoch(self, position: Position, epoch_snapshot: bytes | None) -> None:
        try:
            self._enter_epoch_at(position, epoch_snapshot)
        except Exception:
            self._init_error = ExceptionWrapper(where=self._where)

    def _enter_epoch_at(self, position: Position, epoch_snapshot: bytes | None) -> None:
        if epoch_snapshot is not None:
            snapshot.restore_random_states(epoch_snapshot, self._as_seeded)
            if position.attempts == 0 and self._progress.is_resumed:
                position = replace(position, dataset=snapshot.position_of(epoch_snapshot).dataset)
        restoring.enter_epoch(self._dataset, position, self._begin)
        if self._is_iterable and restoring.has_to_replay(position):
            fetch = functools.partial(self._fetch_again, position.epoch)
            restoring.replay(fetch, position, self._desk.show_replay)

    def _begin(self) -> Any:
        self._begin_epoch()
        return self._fetcher

    def _fetch_again(self, epoch: int, attempt: int, index: Any) -> Any:
        if not self._spec.is_seeded:
            return self._fetcher.fetch(index)
        request = Samples(listed(index)) if self._watches else index
        number = number_of_attempt(self._spec.worker_id, self._spec.num_workers, attempt)
        return self._fetcher.fetch_as((epoch, number), request)
