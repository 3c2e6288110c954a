"""
The nursery: the process that starts replacements for workers that died.

A replacement has to begin with the dataset as it was when the iterator was made, and by then the
trainer's own may have changed. So one more process is started beside the workers, in the same way,
keeps what they were given, and forks a worker whenever it is told to. It touches nothing else: no
slot, no ring, no dataset. What was pickled on its way is unpacked by each replacement for itself.
"""

import contextlib
import errno
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import time
import warnings
from multiprocessing import connection as connections
from multiprocessing import context, popen_fork, util
from typing import Any

from shmloader.memory import forks

ORDER = struct.Struct("<2q")  # number, worker id; a file with the pickled progress comes along
REPORT = struct.Struct("<3q")  # number, pid or 0, exit code or RUNS; an errno where there is no pid
RUNS = 1 << 32  # no process exits with this code
_UNKNOWN = 255  # the exit code of a child whose end something else in this process took up
_FOR_OTHERS = signal.valid_signals() - {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGCHLD),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP),
}
_PAUSE_S = 0.2  # after a fork that failed: the next order may come at once


def run(trainer, sealed, replace, signal_mask, line, trainers_end):
    """
    Be the nursery until the trainer closes its end of the line, or is gone.

    Args:
        trainer: The `shmloader.worker.loop.Trainer` whose end ends this process.
        sealed: What workers are started with, to be opened by each of them.
        replace: Called in each replacement with what was sealed, its worker id and the progress.
        signal_mask: The signals that workers block.
        trainers_end: Its end of the line, where it came along by a fork; else None.
    """
    # Whatever is sent to a whole group is for others: who heals them must survive it.
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    handlers = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, signal.SIG_DFL)}
    if trainers_end is not None:
        trainers_end.close()
    else:
        # This process has imported libraries, and their threads do not block signals.
        handlers |= {each: signal.signal(each, signal.SIG_IGN) for each in _FOR_OTHERS}
    trainer.watch()
    # Daemons may not have children of multiprocessing's, because nobody would end those. These
    # watch the trainer too, and are daemons again.
    this: Any = multiprocessing.current_process()
    this._config["daemon"] = False
    _Home(trainer, sealed, replace, signal_mask, line, handlers).serve()


class _Home:
    def __init__(self, trainer, sealed, replace, signal_mask, line, handlers):
        self._trainer = trainer
        self._sealed = sealed
        self._replace = replace
        self._signal_mask = signal_mask
        self._line = line
        self._handlers = handlers  # of signals, as workers have them; None: Python does not know
        self._children = {}  # number -> process
        self._newest = {}  # worker id -> number of the newest that was ordered for it

    def serve(self):
        """Start what the trainer orders and tell it who has ended, until it closes its end."""
        is_open = True
        while is_open:
            numbers: dict[Any, int]
            numbers = {child.sentinel: number for number, child in self._children.items()}
            ready = connections.wait([self._line, *numbers])
            for sentinel in numbers.keys() & set(ready):
                self._reap(numbers[sentinel])
            if self._line in ready:
                is_open = self._obey()
        for child in self._children.values():
            child.kill()
        for number in list(self._children):
            self._reap(number)

    def _obey(self):
        try:
            order, descriptors, _, _ = socket.recv_fds(self._line, ORDER.size, 1)
        except ConnectionResetError:
            # Closed, or dropped by a death, before the last reports were read.
            return False
        if not order:
            return False
        number, worker_id = ORDER.unpack(order)
        if not descriptors:
            self._tell(number, 0, errno.EMFILE)
            return True
        with open(descriptors[0], "rb") as letter:
            # Ordered once more, because the trainer could not know that it was.
            if number > self._newest.get(worker_id, -1):
                self._newest[worker_id] = number
                self._start(number, worker_id, letter)
        return True

    def _start(self, number, worker_id, letter):
        child = _Child(
            target=self._be_worker,
            args=(number, worker_id, letter),
            name=f"Replacement-{number}",
            daemon=True,
        )
        try:
            with forks.ours():
                child.start()
        except OSError as error:
            time.sleep(_PAUSE_S)
            self._tell(number, 0, error.errno)
        else:
            self._children[number] = child
            # Said by both: either may be killed, or stopped, before it says so.
            self._tell(number, child.pid, RUNS)

    def _reap(self, number):
        child = self._children.pop(number)
        child.join()
        self._tell(number, child.pid, _UNKNOWN if child.exitcode is None else child.exitcode)

    def _tell(self, number, pid, code):
        # A trainer that does not listen any more is gone, or about to say so.
        with contextlib.suppress(OSError):
            self._line.send(REPORT.pack(number, pid, code), socket.MSG_NOSIGNAL)

    def _be_worker(self, number, worker_id, letter):
        self._trainer.watch()
        self._tell(number, os.getpid(), RUNS)
        self._line.close()
        for number, handler in self._handlers.items():
            if handler is not None:
                signal.signal(number, handler)
        # As a worker that starts: interrupts come in once it can keep quiet about them.
        signal.pthread_sigmask(signal.SIG_SETMASK, {*self._signal_mask, signal.SIGINT})
        with letter:
            progress = pickle.load(letter)
        self._replace(self._sealed.open(), worker_id, progress)


class _Child(context.ForkProcess):
    @staticmethod
    def _Popen(process_obj):
        return _Fork(process_obj)


class _Fork(popen_fork.Popen):
    """How multiprocessing forks, and where that fails no pipe stays open."""

    def _launch(self, process_obj):
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self.sentinel, _ = _pipe(ours, theirs)
            parent_sentinel, _ = _pipe(theirs, ours)
            with warnings.catch_warnings():
                # Of forks beside a thread, since Python 3.12: the one here runs no Python.
                warnings.simplefilter("ignore", DeprecationWarning)
                self.pid = os.fork()
            if self.pid == 0:
                ours.close()
                _be_child(process_obj, parent_sentinel)
            self.finalizer = util.Finalize(self, ours.pop_all().close)


def _pipe(reader, writer):
    """Make a pipe whose ends are closed with the stacks of those who have them."""
    ends = os.pipe()
    for end, owner in zip(ends, (reader, writer), strict=True):
        owner.callback(os.close, end)
    return ends


def _be_child(process_obj, parent_sentinel):
    code = 1
    try:
        code = process_obj._bootstrap(parent_sentinel=parent_sentinel)
    finally:
        os._exit(code)
