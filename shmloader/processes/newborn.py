"""
A worker that another process starts, known to the trainer by the file of its birth.

The trainer does not wait for it: an order for it is given again until the file says which process
it is, or that there will be none. An interrupt may come between any two lines; the next look goes
on.
"""

import contextlib
import errno
import os
import pickle
import signal
import time
from typing import Any, Protocol

from shmloader.errors import REFUSALS
from shmloader.processes import watching
from shmloader.processes.birth import Birth, Event

_PATIENCE_S = 5.0  # with what may still be starting, and with what keeps it from that
_NOTE_S = 0.1  # to wait for the exit code of a process that has ended


class Orders(Protocol):
    """What has workers started."""

    patience_s: float  # how long it may take
    is_worker: bool  # True if the process told to is the worker itself

    def order(self, birth: Birth) -> Any:
        """Have a process started for a birth; return the process told to, or None: not now."""


class Newborn:
    """
    A worker that was ordered, with that part of a Process's interface that is used here.

    It goes on where its progress says; None: where any worker begins.
    """

    daemon = True

    def __init__(self, mother: Orders, worker_id: int, progress: Any) -> None:
        self._mother = mother
        self._content = pickle.dumps((worker_id, progress))
        self.name = f"Worker-{worker_id}"
        self._birth: Birth | None = None
        self._taker: Any = None  # the process that the order was given to
        self._trouble_since_s: float | None = None
        self._started = 0  # when its process did, as a record has it
        self._was_asked = False  # to end, by a signal
        self._seen_ended_s: float | None = None
        # As a Process has it; an errno if it could not be started; None while it runs, or if its
        # parent died before it was reaped.
        self.exitcode: int | None = None
        self.ident: int | None = None  # its pid, as far as it was noted

    def start(self) -> None:
        """
        Order it if no process obeys an order; it starts once, however often it is ordered.

        What is short when the trainer orders may be there at the next look, for a while.
        """
        taker = self._taker
        # The file is looked at last: the taker may have obeyed and died.
        if (taker is not None and taker.is_alive()) or self.is_decided():
            return
        if taker is not None:
            self._taker = None
            is_reason = taker.exitcode in errno.errorcode
            self._meet_trouble(taker.exitcode if is_reason else errno.EOWNERDEAD, is_reason)
            return
        try:
            self._birth = self._birth or Birth.make(self._content)
            self._taker = self._mother.order(self._birth)
        except OSError as error:
            self._meet_trouble(error.errno or errno.EIO, error.errno in REFUSALS)

    def _meet_trouble(self, code: int, is_final: bool) -> None:
        now = time.monotonic()
        self._trouble_since_s = self._trouble_since_s or now
        if is_final or now - self._trouble_since_s >= _PATIENCE_S:
            self._cancel(code)

    def _cancel(self, code: int) -> None:
        """Have it never begin, unless it has begun."""
        if self._birth is None:
            self.exitcode = code
        else:
            self._birth.add(Event.FAILED, code=code)
            self._read()

    def is_decided(self) -> bool:
        """Returns True if it is known which process it is, or that none will be."""
        if self.ident is None:
            self._read()
        return self.ident is not None or self.exitcode is not None

    def _read(self) -> None:
        """Take in what its file says."""
        if self._birth is None or self.exitcode is not None:
            return
        for record in self._birth.records():
            is_first = self.ident is None
            if is_first and record.event == Event.BORN:
                self._started, self.ident = record.started, record.pid
            elif is_first or (record.event, record.pid) == (Event.ENDED, self.ident):
                self.exitcode = record.code
                self._birth.close()
                return

    @property
    def pid(self) -> int | None:
        """Its process; None if it could not be started, or nothing was noted in time."""
        watching.wait_until(self._is_begun, self._mother.patience_s)
        return self.ident

    def _is_begun(self) -> bool:
        self.start()
        return self.is_decided()

    @property
    def is_over(self) -> bool:
        """True if it has ended, or never will begin, as far as is known."""
        self._read()
        if self.ident is None or self.exitcode is not None:
            return self.exitcode is not None
        return not self._runs() and self._code_is_final(self.ident)

    def _code_is_final(self, pid: int) -> bool:
        """Returns True if no exit code is to be waited for: its parent may be dead or stopped."""
        self.exitcode = watching.reap(pid, self._started)
        if self.exitcode is None and self._taker is not None and self._taker.pid == pid:
            self.exitcode = self._taker.exitcode  # it was told to be the worker itself
        now = time.monotonic()
        self._seen_ended_s = self._seen_ended_s or now
        return self.exitcode is not None or self._was_asked or now - self._seen_ended_s > _NOTE_S

    def _runs(self) -> bool:
        return self.ident is not None and watching.is_running(self.ident, self._started)

    def is_alive(self) -> bool:
        """Returns True if it runs, or is about to."""
        return not self.is_over

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most timeout seconds."""
        watching.wait_until(lambda: self.is_over, timeout)

    def kill(self) -> None:
        """Kill it; if it has not begun, what was told to start it instead, which may be stopped."""
        hangs = not self.is_decided()
        self.terminate()
        if hangs and self._taker is not None:
            self._taker.kill()

    def terminate(self) -> None:
        """Kill it, because it may do nothing on SIGTERM; if it has not begun, it never will."""
        if not self.is_decided():
            self._cancel(errno.ECANCELED)
            if self._mother.is_worker and self._taker is not None:
                # It would import for seconds before it sees that; no other worker needs it.
                self._taker.kill()
                self._taker.join()
        if self.ident is not None and self.exitcode is None and self._runs():
            self._was_asked = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.ident, signal.SIGKILL)
