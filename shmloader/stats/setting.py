"""What a loop is run with, as whoever judges it needs to know."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Self

CYCLE, DYNAMIC = "cycle", "dynamic"  # what `assignment` may be
SERVER = "server"  # a start by a process that has imported what workers need
SERVER_WITH_SCRIPT = "server with script"  # by one that has imported the program's script too


@dataclass(frozen=True)
class Setting:
    """What a loop is run with: `Service.setting` makes it, viewers read it from the nameplate."""

    workers: int  # now, or when it was written for viewers
    prefetch_factor: int
    in_order: bool
    assignment: str  # CYCLE or DYNAMIC
    may_be_dynamic: bool  # the dataset and the other options let assignment be "dynamic"
    may_have_threads: bool  # workers have no fetching threads, and those would let them
    slots: int
    chosen_slots: int | None  # what the user set; None: the loader chose
    extra_slots: int  # those that the loader chooses beside the ones that are ahead
    spare: int  # slots that the user may hold; the others are the workers'
    ring_bytes: int  # the ceiling for what slots keep
    most_bytes: int  # what ring_bytes may be at most, for the memory that there is
    cores: float  # those that the process may use; a fraction is a share of time
    ranks: int  # processes of the training that share the machine, with as many cores each
    persistent: bool  # workers live on between epochs
    most_workers: int = 0  # that there may be if the loader finds how many; 0: it does not
    start: str = ""  # the start method, or one of the above; "": not known
    # The last change of the number of workers, as the numbers of a WorkersChange; None: none yet.
    changed: Sequence[float] | None = None

    @property
    def ahead(self) -> int:
        """Batches that are ordered ahead, of all workers together."""
        return max(self.workers, self.most_workers) * self.prefetch_factor

    def grown_to(self, slots: int) -> Self:
        """Returns the same with so many slots, if there are more and the user did not choose."""
        more = 0 if self.chosen_slots is not None else max(0, slots - self.slots)
        return replace(self, slots=self.slots + more, spare=self.spare + more)

    def to_bytes(self) -> bytes:
        """Write it for viewers."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Read what `to_bytes` wrote; None if that is none, or another version wrote it."""
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError):
            return None


def in_use(slots: Mapping[str, int]) -> int:
    """Count the slots that are there, of those in each state."""
    return sum(slots.get(name, 0) for name in ("free", "placed", "ready", "leased", "fenced"))
