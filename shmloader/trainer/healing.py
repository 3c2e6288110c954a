"""
What happens to a worker that died when `restarts` is set: another takes its place.

The batches, their order and their random draws stay as they would have been. The trainer has
nothing to wait for: the replacement finds its requests in its ring when it is there.
"""

import itertools
import os
import signal
import sys
import warnings
from typing import Any

import torch.utils.data

from shmloader.errors import RestartWarning

_INDICES_SHOWN = 16
_NOT_THE_USERS = tuple(os.path.dirname(path) for path in (__file__, torch.utils.data.__file__))


def _name_of(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_end(process):
    """How a process ended, as what it did: "was killed by SIGKILL"."""
    code = process.exitcode
    if process.pid is None:
        return "could not be started" + (f" ({os.strerror(code)})" if code is not None else "")
    if code is None:
        return "ended"
    return f"was killed by {_name_of(-code)}" if code < 0 else f"exited with code {code}"


def describe_request(index):
    """Which batch a request is for, in the words of a sentence."""
    if index is None:
        return "no batch"
    if isinstance(index, list) and index and index.count(None) == len(index):
        return f"the next {len(index)} samples of its iterable dataset"
    if not isinstance(index, (list, tuple)):
        return f"dataset index {index!r}"
    shown = ", ".join(map(repr, itertools.islice(index, _INDICES_SHOWN)))
    more = len(index) - _INDICES_SHOWN
    return f"dataset indices [{shown}" + (f", and {more} more]" if more > 0 else "]")


def _level_of_user():
    """How far up the stack the loop is that iterates, for its caller's warning to point at."""
    frame: Any = sys._getframe(1)
    level = 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame, level = frame.f_back, level + 1
    return level


def _pid_of(process):
    return f" (pid {process.pid})" if process.pid is not None else ""


class Healer:
    """Replaces the workers of one iterator, so many times in each epoch."""

    def __init__(self, transport, nursery, workers, restarts):
        """
        Heal what dies from now on.

        Args:
            workers: The list of processes, by worker; replacements are put into it.
            restarts: How many deaths are healed in each epoch.
        """
        self._transport = transport
        self.nursery = nursery
        self._workers = workers
        self._restarts = restarts
        self._used = 0

    def begin_epoch(self):
        """Have all restarts again."""
        self._used = 0

    def can_heal(self, worker_id):
        """Whether a restart is left, somebody to start the replacement, and a place to go on at."""
        self.nursery.hear()
        has_restart = self._used < self._restarts and not self.nursery.is_lost
        return has_restart and self._is_known(worker_id)

    def _is_known(self, worker_id):
        progress = self._transport.ledger.progress[worker_id]
        return progress.is_known and progress.epoch_is_known

    def heal(self, worker_id, cause=None):
        """
        Put another worker in the place of one that was reaped, and warn.

        Args:
            cause: What happened to it, if not what its exit code says.
        """
        dead = self._workers[worker_id]
        progress = self._transport.recall(worker_id)
        index = self._transport.in_hand(worker_id)
        # In its place before it starts: an interrupt must not leave one here of whom nobody knows.
        self._workers[worker_id] = self.nursery.replacement(worker_id, progress)
        self._workers[worker_id].start()
        self._used += 1
        self._transport.ledger.restarts += 1
        self._transport.pump()
        warnings.warn(
            f"DataLoader worker {worker_id}{_pid_of(dead)} {cause or describe_end(dead)} with "
            f"{describe_request(index)} in hand; another takes its place, and no batch changes "
            f"(restart {self._used} of {self._restarts} in this epoch)",
            RestartWarning,
            stacklevel=_level_of_user(),
        )

    def explain(self, worker_id):
        """Why a worker that died is not replaced, naming the batch that it had in hand."""
        dead = self._workers[worker_id]
        who = f"DataLoader worker (pid(s) {dead.pid}) exited unexpectedly: it"
        if dead.pid is None:
            who = f"DataLoader worker {worker_id}"
        words = (
            f"{who} {describe_end(dead)} with "
            f"{describe_request(self._transport.in_hand(worker_id))} in hand, "
        )
        if self.nursery.is_lost:
            return words + "and the process that starts replacements is gone too"
        if not self._is_known(worker_id):
            return words + "and its last answer had no room to say where another could go on"
        words += f"and all {self._restarts} restarts of this epoch are used: "
        if dead.pid is None:
            return words + "processes, memory or files are short; free some, or raise restarts"
        return words + (
            "if it was this batch each time, look at these samples; otherwise raise restarts"
        )
