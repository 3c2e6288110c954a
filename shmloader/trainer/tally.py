"""What one iterator has done in an epoch, for the line that the logger "shmloader" is told then."""

from shmloader import log
from shmloader.core import Ledger


class Tally:
    """Counts an epoch by what its ledger had counted before it."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        """
        Count nothing yet.

        Args:
            name: Of the loader.
        """
        self._name = name
        self._ledger = ledger
        self._before: tuple[int, ...] | None = None

    def begin(self) -> None:
        """Begin an epoch, and end one that the user broke off."""
        self.end()
        self._before = self._counts()

    def end(self) -> None:
        """Tell what the epoch had, unless that was told."""
        before, self._before = self._before, None
        if before is None:
            return
        pairs = zip(self._counts(), before, strict=True)
        batches, moved_bytes, waited_ns, spilled, restarts = (now - then for now, then in pairs)
        log.tell(
            "%s: epoch ended: %d batches of %.1f MB in all, %.3f s waited, %d spilled, "
            "%d restarts; %.1f MB resident",
            self._name,
            batches,
            moved_bytes / 1e6,
            waited_ns / 1e9,
            spilled,
            restarts,
            self._ledger.resident_bytes / 1e6,
        )

    def _counts(self) -> tuple[int, ...]:
        ledger = self._ledger
        return (ledger.batches, ledger.bytes, ledger.waited_ns, ledger.spilled, ledger.restarts)
