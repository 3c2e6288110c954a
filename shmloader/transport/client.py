"""What the transport asks of its client, in the training process."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from shmloader import log
from shmloader.core import Past
from shmloader.errors import warn


class Words(NamedTuple):
    """
    How messages about the deaths of workers speak of what a client has them do.

    Attributes:
        again: What comes of the request in hand, as a clause.
        period: For which restarts are counted.
        suspect: What to do if it was the same request each time.
        anew: What replacements begin with if the nursery was started again, and what follows.
        without: What to leave out where replacements cannot be had.
    """

    again: str
    period: str
    suspect: str
    anew: str
    without: str


class Client(Protocol):
    """
    Who has the workers do something, and knows what.

    A note is what a worker of the client's says with an answer, or at its end: bytes, which the
    transport keeps for a replacement and does not read.

    Attributes:
        kind: What messages call a worker, as in "DataLoader worker".
        words: What else messages say.
        spec: What each worker is started with, but for its id; what starts workers needs of it
            what a `Spec` has.
        succeed: Is run in each worker: (spec, worker, progress). Progress is where it goes on,
            such as in a dead worker's place; None: where any worker begins.
        modules: What a server imports that workers are forked from.
        preload: What it imports beside them; None: each worker imports by itself.
        leaves: Workers may leave by themselves, as when they have grown too much.
        unsendable: What to say if something of the spec cannot be pickled.
    """

    kind: str
    words: Words
    spec: Any
    succeed: Callable[[Any, int, Past | None], None]
    modules: tuple[str, ...]
    preload: tuple[str, ...] | None
    leaves: bool
    unsendable: str

    def describe(self, request: Any) -> str:
        """Say what a request asks for, as a part of a sentence; None: there is no request."""

    def warn(self, message: str) -> None:
        """Warn of a restart; what that raises comes out of a wait for an answer."""

    def is_place(self, past: Past) -> bool:
        """Returns True if another worker can go on from the notes that are known of one."""

    def says_that_it_leaves(self, note: bytes) -> bool:
        """Returns True if the worker left after this note."""

    def growth(self, note: bytes) -> tuple[int, int] | None:
        """Return by how many bytes it had grown in how many answers; None: not known."""

    def watch(self, pids: Sequence[int]) -> None:
        """Have deaths raise in this process at once, where they are not healed."""

    def unwatch(self) -> None:
        """Take that back, if it was done."""


def warn_aside(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn where an error would break what it does not belong to: the log says it instead."""
    try:
        warn(message, category)
    except Warning:
        log.warn("%s", message)
