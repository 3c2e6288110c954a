"""How messages name what lies in shared memory, and what to do where there is no room for it."""

from typing import NamedTuple


class Remedies(NamedTuple):
    """
    What messages call a thing that lies in shared memory, and what to do if there is no room.

    Attributes:
        smaller: Makes one smaller.
        fewer: Makes longer slots, or one smaller.
        short: Helps where memory is short.
    """

    thing: str
    smaller: str
    fewer: str
    short: str


OF_BATCHES = Remedies(
    thing="batch",
    smaller="lower batch_size",
    fewer="lower slots, prefetch_factor or batch_size",
    short="lower batch_size, slots, prefetch_factor or num_workers, set ring_bytes, or raise the "
    "memory limit",
)
