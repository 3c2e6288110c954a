"""
The trainer's side of a process that forks workers: the nursery, or a preloaded server.

If it is gone when it is needed, another one is started. An order that a dying one may have taken,
or that an interrupt hid, is sent again: what came of it stands in the file of the birth, and at
most one process obeys it.

An interrupt may come between any two lines; the next look goes on.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from shmloader.errors import naming
from shmloader.processes import starting
from shmloader.processes.birth import Birth
from shmloader.processes.channel import Channel
from shmloader.processes.forking import ORDER
from shmloader.processes.proc import wait_for_child

_PAUSE_S = 0.05  # from one start of such a process to the next
_END_S = 0.3  # for it to end its children, before it is killed
_KILL_S = 5.0  # after SIGKILL only the kernel can be waited for


class Mother:
    """Has workers forked without waiting for them, and ends like a Process."""

    # That forks them now, and is like one of multiprocessing's; another one is started if needed.
    process: Any

    def __init__(self) -> None:
        """Make the process; it is not started."""
        self._due_s = 0.0  # when the next process may be started
        self.count = 0  # how many such processes were started
        self._make()

    def _make(self) -> None:
        near_end, far_end = Channel.pair()
        self.process = self._new_process(near_end, far_end)
        # The far end last: it says that the process may be started.
        self._channel, self._far_end = near_end, far_end

    def _new_process(self, near_end: Channel, far_end: Channel) -> Any:
        """Make the process that serves the far end; it is not started."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the process."""
        with self._far_end:
            starting.start(self.process)
        self.count += 1

    def is_alive(self) -> bool:
        """Returns True if the process runs."""
        return bool(self.process.is_alive())

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most timeout seconds."""
        if self.process.pid is not None:
            self.process.join(timeout)

    def terminate(self) -> None:
        """Close the channel for orders: the process ends its children and then itself."""
        with contextlib.suppress(OSError):
            self._channel.shut()

    def kill(self) -> None:
        """Kill it, and leave its children to the trainer."""
        if self.is_alive():
            self.process.kill()

    def order(self, birth: Birth, others: Callable[[], Sequence[int]] = tuple) -> Any:
        """
        Have a process forked for a birth, which is to have the other descriptors too.

        Returns:
            The process that the order was sent to, a new one if there was none; None: not now.
        """
        if not self.is_alive():
            now = time.monotonic()
            if now < self._due_s:
                return None
            self._due_s = now + _PAUSE_S
            if self._far_end.fileno() < 0:  # one was started, or an interrupt came as it was
                self._make()
            self.start()
        return self.process if self._send([birth.fileno(), *others()], birth) else None

    def _send(self, descriptors: list[int], birth: Birth) -> bool:
        order = ORDER.pack(birth.content_bytes, len(descriptors))
        try:
            self._channel.say(order, descriptors)
        except (BlockingIOError, ConnectionError):
            return False
        except OSError as error:
            # More descriptors are under way than this process may have open.
            if error.errno != errno.ETOOMANYREFS:
                raise
            return False
        return True

    def close(self) -> None:
        """End the process and all of its children."""
        self.terminate()
        self.join(_END_S)
        self.kill()
        self.join(_KILL_S)
        self._far_end.close()
        self._channel.close()


def try_calls(remedy: str) -> None:
    """
    Make the system calls that births need and nothing else does.

    Raises:
        OSError: One of them is refused, as it would be in another process, which could only
            print it; with the remedy.
    """
    with naming("socketpair", remedy):
        near_end, far_end = Channel.pair()
    birth = Birth.make(b"")
    here = os.getpid()  # no child of itself, so it cannot be reaped
    trials: dict[str, Callable[[], object]] = {
        "sendmsg": lambda: near_end.sendmsg([ORDER.pack(0, 0)]),
        "recvmsg": lambda: far_end.recvmsg(ORDER.size),
        "pread64": birth.records,
        "wait4": lambda: wait_for_child(here, os.WNOHANG),
    }
    with near_end, far_end:
        for call, trial in trials.items():
            with naming(call, remedy), contextlib.suppress(ChildProcessError):
                trial()
