"""Tells once of workers whose first batch takes long, and what it waits for."""

import time

from shmloader import log
from shmloader.memory.segment_pool import LAYOUT
from shmloader.transport.transport import Transport
from shmloader.transport.workers import Workers

_AFTER_S = 5.0
_BEGINNING = "the others import modules, unpickle the dataset or run your init function"


class LongStart:
    """The start of one transport's workers, while their first batch is waited for."""

    def __init__(self, transport: Transport, processes: Workers) -> None:
        self._transport = transport
        self._processes = processes
        self._is_told = False

    def look(self) -> None:
        """Tell of it if the first batch is late; to be called while it is waited for."""
        started_s = self._processes.started_s
        if self._is_told or started_s is None:
            return
        passed_s = time.monotonic() - started_s
        waiting = self._transport.requests.waiting
        if self._transport.ledger.oldest() != 0 and not (waiting and waiting[0][2] == 0):
            self._is_told = True  # the first batch has come
        elif passed_s >= _AFTER_S:
            self._is_told = True
            log.warn(
                "%s: no batch %.0f s after its workers were started: %s",
                *(self._transport.name, passed_s, self._describe()),
            )

    def _describe(self) -> str:
        pids = {process.ident for process in self._processes.by_id} - {None}
        views = [
            LAYOUT.values("worker_view", each) for each in self._transport.notes.views() if each
        ]
        count, of = sum(view["pid"] in pids for view in views), self._processes.working
        doing = self._processes.doing
        if doing is None:
            doing = "the first batch is fetched" if count == of else _BEGINNING
        # A barrier or a queue of your init function may wait for more than there are at first.
        most = len(self._processes.by_id)
        more = f", of at most {most}" if most > of else ""
        return f"{count} of {of} workers{more} have started; {doing}{self._processes.suspicion()}"
