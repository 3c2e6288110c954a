"""The trainer's and the worker's end of one segment, both in this process."""

from typing import Any

from shmloader.core import Verb, pickling
from shmloader.memory.segment import Segment, first_shape

SLOTS = 8
RING_BYTES = 1 << 30  # each slot may fill an eighth without asking: no trainer would answer


class Ends:
    """A ledger and a desk, and the moves that bring a slot from one to the other and back."""

    def __init__(self) -> None:
        self.segment = Segment(first_shape(1, SLOTS, RING_BYTES))
        self.ledger = self.segment.ledger
        self.desk = self.segment.handle().sit_down(0)
        self._ticket = 0

    def begin(self) -> None:
        """Send a request and take it, so that the desk has a slot in hand."""
        assert self.ledger.place(0, self._ticket, [self._ticket]), "no slot is free"
        self._ticket += 1
        assert self.desk.take(0)

    def write(self, batch: Any) -> None:
        """Write a batch into the slot in hand."""
        self.desk.write(batch, False, pickling.Pickler)

    def send(self) -> int:
        """
        Commit the slot in hand and receive it; no alias of it may be alive at the desk.

        Returns:
            The slot, ready to be delivered or discarded.
        """
        self.desk.commit()
        news = self.ledger.receive()
        assert news is not None and news.verb is Verb.READY
        return news.slot

    def deliver(self, slot: int) -> Any:
        """Turn a ready slot into its batch."""
        return self.ledger.deliver(slot, False, pickling.Unpickler)

    def discard(self) -> None:
        """Answer the request in hand with nothing and free its slot."""
        self.desk.write_nothing()
        self.ledger.discard(self.send())
