"""A device that reads answers which were dropped: its copies end when the run's chance says so."""

from __future__ import annotations

import ctypes
import random
from typing import Any
from unittest import mock

import numpy

from shmloader.core import open_driver
from shmloader.memory import page_locks
from shmloader.memory.segment_pool import SegmentPool
from shmloader.pinning.host_delivery import LockedDelivery
from shmloader.transport.transport import Transport
from tests.device.driver import Driver, library
from tests.simulation.checks import Wrong

_NAMES: dict[str, Any] = {
    "shmloader.pinning.pinned_slots.may_lock": lambda: True,
    "shmloader.memory.policy.LOCKED_MIN_BYTES": 1,
}


class FencedDelivery(LockedDelivery):
    """Delivers answers in slots that are page-locked, and has a device read them."""

    def __init__(self, transport: Transport, pool: SegmentPool, chance: random.Random) -> None:
        assert open_driver(library().encode()) == 0
        super().__init__(transport, pool)
        self._received = transport.received
        self._driver, self._chance = Driver(), chance
        self._copies: list[tuple[numpy.ndarray, numpy.ndarray]] = []
        self._patches = [mock.patch(name, value) for name, value in _NAMES.items()]
        for patch in self._patches:
            patch.start()

    def deliver(self, answer: Any) -> Any:
        """Deliver it, and see to the slots before."""
        self.look()
        return self._received.deliver(answer)

    def waiting(self) -> float:
        """Let some copies end; as `LockedDelivery.waiting`."""
        self._driver.finish(self._chance.randrange(3))
        return super().waiting()

    def read(self, array: numpy.ndarray, wanted: numpy.ndarray) -> None:
        """Begin to copy an answer to the device, unless it is so small that it was copied out."""
        source = ctypes.c_void_p(array.ctypes.data)
        if self._driver.lib.standin_holds(source, ctypes.c_size_t(array.nbytes)):
            there = numpy.full_like(array, -1)
            to = ctypes.c_void_p(there.ctypes.data)
            self._driver.lib.standin_copy(to, source, ctypes.c_size_t(array.nbytes))
            self._copies.append((there, wanted))

    def end(self) -> None:
        """Let all copies end, and compare them; behind the close of the segment."""
        self._driver.finish()
        page_locks.look_at_idle()
        for patch in self._patches:
            patch.stop()
        if not all(numpy.array_equal(there, wanted) for there, wanted in self._copies):
            raise Wrong("a slot was written again before the device had read it")
        if self._driver.faults or self._driver.registered:
            raise Wrong(f"{self._driver.registered} slots stay locked: {self._driver.faults}")
