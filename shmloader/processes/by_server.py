"""Start the workers of one transport by a preloaded server; if it cannot have them, each anew."""

import os
from collections.abc import Sequence
from multiprocessing import resource_tracker, spawn
from typing import Any

from shmloader.core import Descriptor
from shmloader.memory import segment
from shmloader.processes.anew import Anew
from shmloader.processes.birth import Birth
from shmloader.processes.preloaded import Letter
from shmloader.processes.sealed import Collector, Sealed, Spec, pickled_for
from shmloader.processes.server import Server
from shmloader.processes.servers import standard

_MOST_DESCRIPTORS = 200  # of what workers are started with; a message has room for some more


def may_carry(content: Sealed) -> bool:
    """Returns True if a server can hand on all descriptors of what workers are started with."""
    return content.descriptor_count <= _MOST_DESCRIPTORS


class ByServer:
    """Starts workers by a server, or by `anew` if that cannot."""

    patience_s = 60.0  # with a server that imports
    is_worker = False

    def __init__(self, server: Server, anew: Anew, spec: Spec) -> None:
        self.server, self._anew, self._spec = server, anew, spec
        self._letter_file: Descriptor | None = None
        server.users.add(self)

    def order(self, birth: Birth) -> Any:
        """Have the process of a birth started. Returns the one that was told to; None: not now."""
        taker = self.server.order(birth, lambda: self._write(birth))
        return self._anew.order(birth) if self.server.unfit else taker

    def _write(self, birth: Birth) -> Sequence[int]:
        """Write the letter; return the descriptors that go with the order."""
        collector = Collector()
        collector.duplicate_for_child(birth.fileno())
        worker = self._anew.make(birth)
        letter = Letter(
            parent=self._spec.parent,
            signals=self._spec.signals,
            standard=tuple(_place(collector, each) for each in (0, 1, 2)),
            tracker=collector.duplicate_for_child(_tracker()),
            cores=os.sched_getaffinity(0),
            nice=os.getpriority(os.PRIO_PROCESS, 0),
            preparation=spawn.get_preparation_data(worker.name),
            process=pickled_for(collector, worker),
        )
        file = self._letter_file = segment.open_object("shmloader-letter")
        with open(file.fileno(), "wb", closefd=False) as opened:
            opened.write(pickled_for(collector, letter))
        return [file.fileno(), *collector.numbers[1:]]

    def close(self) -> None:
        """Order nothing any more."""
        self.server.users.discard(self)


def _tracker() -> int:
    descriptor: Any = resource_tracker.getfd()  # starts it, as multiprocessing does
    return int(descriptor)


def _place(collector: Collector, descriptor: int) -> int | None:
    is_open = descriptor in standard()
    return collector.duplicate_for_child(descriptor) if is_open else None
