"""
The processes of a nursery: the youngest one is active and takes orders, the others stand by.

Each watches all others. If one dies, the youngest of the rest is active, and forks another one,
which is active then. So any number of them may die, as long as one is left each time; there are
three, because on a busy machine it takes a tenth of a second to die, and as long to be forked. Each
adopts the replacements of those that it forked, so that they can be reaped. None has a thread of
ours when it forks.

For a moment two may be active: each order is taken by one, and its claim decides.
"""

import contextlib
import os
import time

from shmloader.processes import forking, watching
from shmloader.processes.roll import RECORD_BYTES, Event, Roll
from shmloader.processes.watching import Watch

SIZE = 3
_PAUSE_S = 0.05  # from one fork of a process to its next: each newborn may die at once


class Members:
    """
    This process and the others.

    Attributes:
        is_active: True if this process takes the orders.
    """

    def __init__(self, roll: Roll) -> None:
        """Be the first one."""
        self.is_active = False
        self._roll = roll
        self._read_bytes = 0  # of the roll
        self._others: dict[int, Watch] = {}  # by pid
        self._younger: set[int] = set()  # of those
        self._has_met_itself = False
        self._due = 0.0  # when to fork
        roll.add(Event.JOINED, pid=os.getpid())
        self.look()
        self._be_active()

    @property
    def descriptors(self) -> list[int]:
        """What becomes readable when another process ends."""
        return [each for watch in self._others.values() for each in watch.descriptors]

    @property
    def patience_s(self) -> float | None:
        """How long to wait at most before complete() and look() are called; None: for ever."""
        patience_s = [watch.patience_s for watch in self._others.values()]
        if self._lacks_one:
            patience_s.append(max(0.0, self._due - time.monotonic()))
        return min((each for each in patience_s if each is not None), default=None)

    @property
    def _lacks_one(self) -> bool:
        return self.is_active and len(self._others) + 1 < SIZE

    def complete(self) -> bool:
        """
        Fork another process if this one is active and one is missing.

        Returns:
            True in the process that was forked, which is the active one.
        """
        if not self._lacks_one or time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + _PAUSE_S
        parent, started = os.getpid(), watching.start_time(os.getpid())
        with contextlib.suppress(OSError):
            child = forking.fork()
            # Noted by both: either may be killed, or stopped, before it has noted it.
            self._roll.add(Event.JOINED, pid=child or os.getpid())
            self.is_active = False
            if child == 0:
                self._begin(Watch(parent, started))
                return True
            self.look()
        return False

    def _begin(self, parent: Watch) -> None:
        """Be the youngest: what the parent watched is watched here too."""
        self._others[parent.pid] = parent
        self._younger.clear()
        self._has_met_itself, self._due = False, 0.0
        self.look()
        self._be_active()

    def look(self) -> bool:
        """See which others there are, and be active if need be. Returns True if one has ended."""
        for record in self._roll.read(self._read_bytes):
            self._read_bytes += RECORD_BYTES
            if record.event == Event.JOINED:
                self._meet(record.pid, record.start_time)
        ended = [pid for pid, watch in self._others.items() if watch.has_ended]
        for pid in ended:
            self._others.pop(pid).close()
            self._younger.discard(pid)
        if ended and not self._younger:
            # Said again if this one was: an order may have died with another active one.
            self._be_active()
        return bool(ended)

    def _meet(self, pid: int, started: str | None) -> None:
        if pid == os.getpid():
            if not self._has_met_itself:
                self._younger.clear()  # all that were met before are older
            self._has_met_itself = True
        elif pid not in self._others:
            self._others[pid] = Watch(pid, started)
            self._younger.add(pid)

    def _be_active(self) -> None:
        self._roll.add(Event.ACTIVE, pid=os.getpid())
        self.is_active = True

    def leave(self) -> None:
        """Watch no process any more: this one is to be a replacement."""
        for watch in self._others.values():
            watch.close()
        self._others.clear()
