"""
The process that starts replacements for workers that died.

A replacement has to begin with the dataset as it was when the iterator was made, and by then the
trainer's own may have changed. So one more process is started beside the workers, in the same way,
keeps what it was given, and forks a worker whenever it is told to. It touches nothing else: no
slot, no ring, no dataset.
"""

import contextlib
import itertools
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from multiprocessing import connection as connections
from typing import Any

from shmloader import forks, processes, worker
from shmloader._core import watch_process

_START, _END, _STARTED, _ENDED = "start", "end", "started", "ended"
_SLICE_S = 0.02  # between two looks for processes of which nobody tells any more


class Replacement:
    """
    A worker that the nursery started, with the part of a Process's manners that is used here.

    Attributes:
        exitcode: As a Process has it; None while it runs.
    """

    daemon = True

    def __init__(self, nursery, number, worker_id):
        self._nursery = nursery
        self._number = number
        self.name = f"Replacement-{number} of worker {worker_id}"
        self.exitcode = None
        self.known_pid = None
        self._started = None

    def note_start(self, pid):
        """Take up which process it is."""
        self.known_pid = pid
        self._started = worker.start_time(pid)

    @property
    def pid(self):
        """Its process; None where the nursery is gone before it could say."""
        self._nursery.hear_until(lambda: self.known_pid is not None or self.is_over, None)
        return self.known_pid

    @property
    def is_over(self):
        """Whether it has ended, as far as was heard."""
        if self._nursery.is_lost and self.exitcode is None:
            # It ends with the nursery, and nobody tells when.
            return self._started is None or worker.start_time(self.known_pid) != self._started
        return self.exitcode is not None

    def is_alive(self):
        """Whether it runs, or is about to."""
        self._nursery.hear()
        return not self.is_over

    def join(self, timeout=None):
        """Wait for its end, at most timeout seconds."""
        self._nursery.hear_until(lambda: self.is_over, timeout)

    def kill(self):
        """End it at once."""
        self._nursery.end(self._number, signal.SIGKILL)

    def terminate(self):
        """Ask it to end."""
        self._nursery.end(self._number, signal.SIGTERM)


class Nursery:
    """
    The trainer's side: starts replacements without waiting for them.

    Attributes:
        is_lost: Whether that process is gone; its replacements end with it.
    """

    def __init__(self, context, assignment):
        """
        Start the process.

        Args:
            context: Of multiprocessing, the one that starts the workers.
            assignment: What any of the workers is started with.
        """
        self._connection, far_end = connections.Pipe()
        self.process = context.Process(
            target=_run, args=(assignment, far_end, self._connection), daemon=True
        )
        self._children = {}
        self._numbers = itertools.count()
        self.is_lost = False
        processes.start(self.process)
        far_end.close()

    def replace(self, worker_id, progress):
        """Start a worker in the place of one that was reaped; returns at once."""
        number = next(self._numbers)
        self._children[number] = child = Replacement(self, number, worker_id)
        self._say(_START, number, worker_id, progress)
        return child

    def end(self, number, signal_number):
        """Send a signal to a replacement, if it runs."""
        self._say(_END, number, signal_number)

    def close(self):
        """End the process and every replacement that still runs."""
        self.process.kill()
        self.process.join()
        self.hear()
        self.is_lost = True
        self._connection.close()

    def _say(self, *message):
        with self._noticing_loss():
            self._connection.send(message)

    def hear(self, timeout_s=0.0):
        """Take up what the process said; waits at most timeout_s seconds for the first word."""
        with self._noticing_loss():
            while not self.is_lost and self._connection.poll(timeout_s):
                self._note(*self._connection.recv())
                timeout_s = 0.0

    def _note(self, verb, number, value):
        if verb == _STARTED:
            self._children[number].note_start(value)
        else:
            # Nobody speaks of it again: a life of many restarts must not keep them all.
            self._children.pop(number).exitcode = value

    def hear_until(self, is_enough, timeout_s):
        """Take up what the process says until that is enough, or until timeout_s seconds passed."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.hear()
        while not is_enough():
            left_s = _SLICE_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                return
            if self.is_lost:
                time.sleep(min(left_s, _SLICE_S))
            else:
                self.hear(left_s)

    @contextlib.contextmanager
    def _noticing_loss(self):
        try:
            yield
        except (EOFError, OSError):
            self.is_lost = True


def _run(assignment, connection, trainers_end):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    terminating = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the user's is for the trainer
    # Under fork the other end came along; while it is open here, its closing is not seen.
    trainers_end.close()
    assignment.trainer.watch()
    # Daemons may not have children of multiprocessing's, because nobody would end those. These
    # watch the trainer and this process, and are daemons too.
    this: Any = multiprocessing.current_process()
    this._config["daemon"] = False
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        _Home(assignment, connection, terminating).serve()


class _Home:
    def __init__(self, assignment, connection, terminating):
        self._assignment = assignment
        self._connection = connection
        self._terminating = terminating  # the handler of SIGTERM that workers have
        self._children = {}  # number -> Process
        self._seats = {}  # worker id -> number of the child that was started for it last

    def serve(self):
        """Do what the trainer says and tell it who has ended, until it closes its end."""
        while True:
            sentinels: dict[Any, int]
            sentinels = {child.sentinel: number for number, child in self._children.items()}
            ready = connections.wait([self._connection, *sentinels])
            for sentinel in sentinels.keys() & set(ready):
                self._reap(sentinels[sentinel])
            if self._connection in ready:
                self._obey(*self._connection.recv())

    def _obey(self, verb, number, *rest):
        if verb == _START:
            self._start(number, *rest)
        elif number in self._children:
            os.kill(self._children[number].pid, rest[0])

    def _start(self, number, worker_id, progress):
        # One that the trainer forgot, because it was interrupted, must not sit at the same rings.
        before = self._seats.get(worker_id)
        if before in self._children:
            self._children[before].kill()
            self._reap(before)
        child = multiprocessing.get_context("fork").Process(
            target=self._be_worker,
            args=(replace(self._assignment, worker_id=worker_id, progress=progress), os.getpid()),
            daemon=True,
        )
        with forks.ours():
            child.start()
        self._children[number] = child
        self._seats[worker_id] = number
        self._connection.send((_STARTED, number, child.pid))

    def _reap(self, number):
        child = self._children.pop(number, None)
        if child is not None:
            child.join()
            self._connection.send((_ENDED, number, child.exitcode))

    def _be_worker(self, assignment, nursery_pid):
        self._connection.close()
        signal.signal(signal.SIGTERM, self._terminating)
        watch_process(nursery_pid)
        if os.getppid() != nursery_pid:
            os._exit(1)
        worker.run(assignment)
