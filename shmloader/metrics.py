"""What a loader has done so far, as records."""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Stats:
    """
    Counts over all epochs of a loader since it was made; the sum of two is that of both loaders.

    Attributes:
        batches: Batches delivered.
        bytes: Bytes of their payload.
        wait_s: Seconds the trainer was parked, waiting for a batch.
        worker_busy_s: Seconds workers fetched, collated and wrote, all workers together.
        worker_starved_s: Seconds workers were parked without an order: nothing asked of them.
        worker_blocked_s: Seconds workers were parked in mid-batch, waiting for a larger grant.
        spilled: Batches copied to private memory because too many slots or bytes were held.
        restarts: Workers that died and were replaced.
        retired: Slots taken out of use because a worker kept an alias of its batch.
        resident_bytes: Bytes of shared memory that have pages now, idle segments included.
        pickled_bytes: Bytes of pickles that rode beside the tensors.
        pickled_batches: Batches that had such a pickle.
        slots: How many slots are in each state now, by the state's name: free, placed, ready,
            leased, forked, retired or spare.
    """

    batches: int = 0
    bytes: int = 0
    wait_s: float = 0.0
    worker_busy_s: float = 0.0
    worker_starved_s: float = 0.0
    worker_blocked_s: float = 0.0
    spilled: int = 0
    restarts: int = 0
    retired: int = 0
    resident_bytes: int = 0
    pickled_bytes: int = 0
    pickled_batches: int = 0
    slots: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: "Stats") -> "Stats":
        """Count two records together."""
        states = {**self.slots, **other.slots}
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in self.__dataclass_fields__
            if name != "slots"
        }
        slots = {state: self.slots.get(state, 0) + other.slots.get(state, 0) for state in states}
        return Stats(**sums, slots=slots)

    def past(self) -> "Stats":
        """Keep what stays true of a segment when it is gone."""
        return replace(self, resident_bytes=0, slots={})


@dataclass(frozen=True)
class Held:
    """
    A batch whose slot is still in use.

    Attributes:
        ticket: Which batch of its iterator it is, counted from 0.
        held_s: Seconds since it was delivered.
        leases: How many storages and arrays' bases still point into its slot.
    """

    ticket: int
    held_s: float
    leases: int
