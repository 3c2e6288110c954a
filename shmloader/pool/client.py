"""The pool as the client of the transport: what its workers run, and what messages call them."""

from collections.abc import Sequence
from typing import Any

from shmloader.pool import calling


class PoolClient:
    """What a pool's workers are: a `Client`, which notes nothing but that a worker leaves."""

    kind = "pool worker"
    unsendable = (
        "the initializer and its arguments cannot be pickled, as the start methods spawn and "
        "forkserver need it: define what they are made of at module level, or use "
        "mp_context='fork'"
    )
    succeed = staticmethod(calling.work)
    modules: tuple[str, ...] = (calling.__name__,)
    counting: tuple[bytes, ...] = (b"rebuild_storage_filename", b"rebuild_cuda_tensor")

    def __init__(self, spec: calling.CallingSpec, preload: tuple[str, ...] | None) -> None:
        """Be asked; preload as a `Client` has it."""
        self.spec = spec
        self.preload = preload
        self.leaves = spec.most_calls is not None

    def describe(self, request: Any) -> str:
        """Say which call a request is, as a part of a sentence."""
        return "no call" if request is None else f"a call of {request.name}"

    def is_whole(self, note: bytes) -> bool:
        """Returns True: any worker can begin anywhere."""
        return True

    def says_that_it_leaves(self, note: bytes) -> bool:
        """Returns True if the worker left after this note."""
        return note == calling.LEAVES

    def growth(self, note: bytes) -> tuple[int, int] | None:
        """Return None: it did not leave because it had grown."""
        return None

    def watch(self, pids: Sequence[int]) -> None:
        """Deaths are seen by looking."""

    def unwatch(self) -> None:
        """There is nothing to take back."""
