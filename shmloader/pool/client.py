"""The pool as the client of the transport: what its workers run, and what messages call them."""

from typing import Any

from shmloader.errors import RestartWarning
from shmloader.pool import calling
from shmloader.transport.client import Client, Words, warn_aside


class PoolClient(Client):
    """What a pool's workers are; they note nothing but that they leave."""

    kind = "pool worker"
    words = Words(
        again="the call is made again",
        period="hour",
        suspect="it was this call each time, check its arguments",
        anew="they begin with the initializer and its arguments in their present state",
        without="or omit restarts and max_tasks_per_child",
    )
    unsendable = (
        "the initializer and its arguments cannot be pickled, which the start methods spawn and "
        "forkserver need: define their functions and classes at module level, or use "
        "mp_context='fork'"
    )
    succeed = staticmethod(calling.work)
    modules: tuple[str, ...] = (calling.__name__,)

    def __init__(self, spec: calling.CallingSpec, preload: tuple[str, ...] | None) -> None:
        """Be asked; preload as a `Client` has it."""
        self.spec = spec
        self.preload = preload
        self.leaves = spec.most_calls is not None

    def describe(self, request: Any) -> str:
        """Say which call a request is, as a part of a sentence."""
        return "no call" if request is None else f"a call of {request.name}"

    def warn(self, message: str) -> None:
        """Warn of a restart, which is no call's error."""
        warn_aside(message, RestartWarning)

    def says_that_it_leaves(self, note: bytes) -> bool:
        """Returns True if the worker left after this note."""
        return note == calling.LEAVES
