"""
A worker that takes the place of another one, in the state of that one's last answer.

The other one died, or belonged to a run that is resumed.

What it does is what the other one did, from the dataset as it was when the iterator was made: the
user's init function; then, in a later epoch, the place of the last answer before that, at which the
order to begin the epoch reached it; the beginning of the epoch, with the random states of that
moment; and the fetches of the epoch. A state_dict() of the dataset spares the fetches, and all
before it. Last come the random states of the last answer.
"""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shmloader.core import Past, Samples
from shmloader.worker import restoring, snapshot
from shmloader.worker.seeds import listed, number_of_attempt
from shmloader.worker.serve import LEAVING
from shmloader.worker.snapshot import Position
from shmloader.worker.worker import Worker, WorkerSpec, work_as


def run(spec: WorkerSpec, worker_id: int, past: Past | None, /) -> None:
    """Be a worker until told to quit, in the place that a past says; None: from the beginning."""
    spec.worker_id = worker_id
    work_as(Worker(spec) if past is None else ReplacementWorker(spec, past))


class ReplacementWorker(Worker):
    """A worker that takes over."""

    def __init__(self, spec: WorkerSpec, progress: Past) -> None:
        super().__init__(spec)
        self._progress = progress

    @property
    def _needs_seeds(self) -> bool:
        return True

    def _initialise(self) -> None:
        with self._errors_as_answers():
            self._take_over()

    @contextlib.contextmanager
    def _errors_as_answers(self) -> Iterator[None]:
        try:
            yield
        except LEAVING:
            raise
        except BaseException as error:  # a death would come again, and cost another restart
            self._init_error = self.wrap(error)

    def _take_over(self) -> None:
        progress = self._progress
        latest = None if progress.latest is None else snapshot.position_of(progress.latest)
        try:
            self._run_init_function()
        except Exception as error:
            # If there was an answer, the dead worker has answered with this error.
            if not progress.has_answered:
                self._init_error = self.wrap(error)
            if latest is None and not progress.seeds:
                return
        if latest is None or latest.has_begun:
            with self._errors_as_answers():
                self._go_to(latest)
        if latest is not None and progress.latest is not None:
            self._position = replace(latest, leaves=False)
            self._has_told, self._untold = restoring.has_state(latest), latest.untold
            snapshot.restore_random_states(progress.latest, self._as_seeded)

    def _go_to(self, latest: Position | None) -> None:
        """Go to the last answer in the epoch; without one, to the epoch's beginning."""
        position = Position() if latest is None else latest
        if self._progress.seeds and not restoring.has_state(position):
            self._go_before(self._progress.begun)
        restoring.enter_epoch(self._dataset, position, self._begin_again)
        if self._is_iterable and restoring.has_to_replay(position):
            fetch = functools.partial(self._fetch_again, position.epoch)
            restoring.replay(fetch, position, self._desk.show_replay)

    def _go_before(self, begun: bytes | None) -> None:
        """Go to where the order to begin the epoch reached the dead worker."""
        if begun is None:
            self._begin()
            return
        position = snapshot.position_of(begun)
        if restoring.has_state(position) and not self._fetch_last_again(position):
            restoring.enter_epoch(self._dataset, position, self._begin)

    def _fetch_last_again(self, position: Position) -> bool:
        """
        Go to the middle of an epoch that was broken off, by its last fetch.

        So a generator has begun: it may look only then at a state that was loaded.

        Returns:
            False if the epoch was over, or the answer before the last one has no state.
        """
        is_over = position.has_ended or position.is_exhausted
        before = self._progress.before
        if is_over or not before or not self._is_iterable:
            return False
        known = snapshot.position_of(before)
        if not restoring.has_state(known):
            return False
        restoring.enter_epoch(self._dataset, known, self._begin)
        snapshot.restore_random_states(before, self._as_seeded)
        with contextlib.suppress(Exception):  # the answer was this error
            self._fetch_again(position.epoch, known.attempts, position.index)
        return True

    def _begin(self) -> Any:
        self._begin_epoch()
        return self._fetcher

    def _begin_again(self) -> Any:
        """Begin the epoch as the dead worker did when it was told to, or when it started."""
        if self._progress.begun is not None:
            snapshot.restore_random_states(self._progress.begun, self._as_seeded)
        if not self._progress.seeds:
            self._begin()
        for seed in self._progress.seeds:
            self._share_seed(seed)
            self._begin()
        return self._fetcher

    def _fetch_again(self, epoch: int, attempt: int, index: Any) -> Any:
        if not self._spec.is_seeded:
            return self._fetcher.fetch(index)
        request = Samples(listed(index)) if self._watches else index
        number = number_of_attempt(self._spec.worker_id, self._spec.num_workers, attempt)
        return self._fetcher.fetch_as((epoch, number), request)
