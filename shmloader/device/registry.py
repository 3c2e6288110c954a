"""
The slots that are page-locked for a device, and since when the others are not.

A slot is registered when its first large batch is copied, with its pages, which the ledger then
keeps: a device reads the pages themselves, even if the file has other ones by then. So nothing
gives them back until they are unregistered, which only the thread that iterates or closes does.
"""

import contextlib

from shmloader import log
from shmloader.core import Ledger, Lent
from shmloader.device.backend import Backend
from shmloader.memory import policy

_HUGE_BYTES = 2 << 20  # what the ledger locks is made of


class Registry:
    """
    Registers the slots of one iterator.

    Attributes:
        complaint: Why slots cannot be registered, for the user; None: they can be, or it was said.
    """

    def __init__(
        self, ledger: Ledger, backend: Backend, name: str, *, lock_bytes: int | None, may_lock: bool
    ) -> None:
        """
        Have no slot registered.

        Args:
            name: The loader's, for the log.
            lock_bytes: How much of each slot; None: what the first large batch needs, and a quarter
                more.
            may_lock: False: never, because something else changes the pages' protection.
        """
        self.complaint: str | None = None
        self._ledger = ledger
        self._backend = backend
        self._name = name
        self._lock_bytes = lock_bytes
        self._may_lock = may_lock and backend.registers
        # slot -> where it begins and how many bytes are registered, 0: none, or not known
        self._slots: dict[int, tuple[int, int]] = {}

    def holds(self, lent: Lent) -> bool:
        """Returns True if the device can read all leaves of a batch where they lie."""
        if not lent.in_slot:
            return False
        if lent.slot not in self._slots:
            if not self._may_lock or lent.payload_bytes < policy.LOCKED_MIN_BYTES:
                return False
            self._register(lent)
        return lent.payload_bytes <= self._slots.get(lent.slot, (0, 0))[1]

    def _register(self, lent: Lent) -> None:
        if self._lock_bytes is None:
            ahead = policy.LOCKED_AHEAD_PART
            self._lock_bytes = lent.payload_bytes * (ahead + 1) // ahead
        wanted = -(-self._lock_bytes // _HUGE_BYTES) * _HUGE_BYTES
        address, length = self._ledger.lock(lent.slot, wanted)
        # Noted first: an interrupt may come after the call.
        self._slots[lent.slot] = (address, 0)
        if length == 0:
            return
        try:
            self._backend.register(address, length)
        except Exception as error:
            del self._slots[lent.slot]
            self._ledger.unlock(lent.slot)
            self._give_up(error)
            return
        self._slots[lent.slot] = (address, length)

    def _give_up(self, error: Exception) -> None:
        self._may_lock = False
        log.tell("%s: slots cannot be page-locked: %s", self._name, error)
        self.complaint = (
            f"slots cannot be page-locked for {self._backend.device} ({error}): batches go through "
            "torch's pinned memory, which costs one more copy by the training thread"
        )

    def release(self) -> bool:
        """Unregister all slots, which no copy uses. If it returns False, their pages must stay."""
        for slot, (address, length) in list(self._slots.items()):
            try:
                self._backend.unregister(address)
            except Exception as error:
                if length > 0:
                    log.tell("%s: slot %d stays page-locked: %s", self._name, slot, error)
                    continue
            self._ledger.unlock(slot)
            with contextlib.suppress(KeyError):
                del self._slots[slot]
        return not self._slots
