"""What the transport asks of its client, in the training process."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from shmloader import log
from shmloader.core import Past
from shmloader.errors import warn


class Words(NamedTuple):
    """How messages about the deaths of workers speak of what a client has them do."""

    again: str  # what comes of the request in hand, as a clause
    period: str  # for which restarts are counted
    suspect: str  # what to do if it was the same request each time
    anew: str  # what replacements begin with by a new nursery, and what follows
    without: str  # what to leave out where replacements cannot be had


class Client(Protocol):
    """
    Who has the workers do something, and knows what.

    A note is what a worker of the client's says with an answer, or at its end: bytes, which the
    transport keeps for a replacement and does not read.
    """

    kind: str  # what messages call a worker, as in "DataLoader worker"
    words: Words
    spec: Any  # what each worker is started with, but for its id: a `Spec`
    # Is run in each worker: (spec, worker, where it goes on; None: where any worker begins).
    succeed: Callable[[Any, int, Past | None], None]
    modules: tuple[str, ...]  # that a server imports
    preload: tuple[str, ...] | None  # that it imports besides; None: there is no server
    leaves: bool  # workers may leave by themselves, as when they have grown too much
    unsendable: str  # what to say if something of the spec cannot be pickled

    def describe(self, request: Any) -> str:
        """Say what a request asks for, as a part of a sentence; None: there is no request."""

    def warn(self, message: str) -> None:
        """Warn of a restart; what that raises comes out of a wait for an answer."""

    def is_place(self, past: Past) -> bool:
        """Returns True if another worker can go on from the notes that are known of one."""
        return True

    def says_that_it_leaves(self, note: bytes) -> bool:
        """Returns True if the worker left after this note."""

    def watch(self, pids: Sequence[int]) -> None:
        """Have deaths raise in this process at once, where they are not healed."""
        return

    def unwatch(self) -> None:
        """Take that back, if it was done."""
        return


def warn_aside(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn where an error would break what it does not belong to: the log says it instead."""
    try:
        warn(message, category)
    except Warning:
        log.warn("%s", message)
