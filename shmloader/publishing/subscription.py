"""The subscriber's side: each batch is copied once into a ring of its own, then given back."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shmloader.core import Descriptor, Feed, Posted, Reply, Window, Word, generation
from shmloader.errors import warn
from shmloader.options.record import Device, Options
from shmloader.publishing.inbox import Inbox
from shmloader.publishing.meeting import connect
from shmloader.publishing.publisher import TELL_S, VERSION
from shmloader.stats import Held, Stats
from shmloader.stats.words import duration, percent

if TYPE_CHECKING:
    import torch

_SLICE_S = 0.05  # between two looks whether the publisher lives


def subscribe(
    name: str, *, device: Device | str | torch.device | None = None, timeout: float = 60.0
) -> Subscription:
    """
    Take part in what another process of this user publishes.

    Args:
        name: As in `publish(loader, name, subscribers=...)` there.
        device: As for `DataLoader`.
        timeout: How long to wait for a publisher of that name, in seconds.

    Returns:
        An iterable of batches: each iter() is the publisher's next epoch.

    Raises:
        TimeoutError: There is no publisher of that name.
        PermissionError: It is another user's.
        ValueError: It is no name, or there is no such device.
    """
    return Subscription(name, Options(device=device), timeout)  # type: ignore[arg-type]


class Subscription:
    """Batches that another process publishes: the same for all that subscribe, in its order."""

    def __init__(self, name: str, options: Options, timeout_s: float) -> None:
        """Connect; the publisher answers when it looks, at the latest when its epoch begins."""
        self._name = name
        self._options = options
        self._peer = connect(name, timeout_s)
        self._peer.send({"version": VERSION})
        self._feed: Feed | None = None
        self._inbox: Inbox | None = None
        self._length: int | None = None
        self._windows: dict[int, Window] = {}  # by the numbers of the files
        self._skipped = 0  # the last epoch that is not read to its end
        self._epoch = 0  # the one that is read; 0: none is
        self._turn = 0  # counts calls of iter()
        self._warned_of = 0
        self._generation = generation()

    # What is asked of an iterable

    def __len__(self) -> int:
        """
        Count the batches of an epoch, as the publisher's loader does.

        Raises:
            TypeError: That has no length.
        """
        self._join()
        if self._length is None:
            raise TypeError(f"the loader that is published as {self._name!r} has no length")
        return self._length

    def __iter__(self) -> Iterator[Any]:
        """Begin the publisher's next epoch; what is left of this one is skipped."""
        self._check_owner()
        self._skip()
        self._turn += 1
        return _Epoch(self, self._turn)

    def stats(self) -> Stats:
        """Count what came here, as a loader's `stats()` does; `bytes` are those of the copies."""
        return self._join().pool.stats()

    def held(self) -> list[Held]:
        """List the batches that still occupy a slot of this process's own ring."""
        return self._join().pool.held()

    def report(self) -> str:
        """Say in a line what the loop waited for in its last epoch."""
        epochs = self._join().pool.history.epochs()
        if not epochs or not epochs[-1].batches:
            return "nothing to report: no epoch was read"
        last = epochs[-1]
        waited = last.wait_s / max(last.wall_s, 1e-9)
        copied = max(0.0, last.next.total_s - last.wait_s)
        return (
            f"of {duration(last.wall_s)}, {percent(waited)} went by waiting for the publisher "
            f"(pid {self._peer.pid}) or its slowest subscriber, and {duration(copied)} were spent "
            f"on copies of {last.batches} batches: the publisher's loader.report() says why it is "
            "late"
        )

    def close(self) -> None:
        """Leave: the publisher counts on this process no more. Batches that are held stay valid."""
        if self._generation != generation():
            return
        if self._feed is not None:
            self._feed.reply(Reply.LEFT, 0)
        self._peer.close()
        if self._inbox is not None:
            self._inbox.close()
        self._turn += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_peer", None) is not None and getattr(self, "_turn", None) is not None:
            self.close()

    # Coming and going

    def _check_owner(self) -> None:
        if self._generation != generation():
            raise RuntimeError(
                f"process {os.getpid()} was forked from the subscriber of {self._name!r}: call "
                "subscribe() here, and announce one more to publish()"
            )

    def _join(self) -> Inbox:
        """Wait until the publisher has answered, and open the ring."""
        self._check_owner()
        if self._inbox is None:
            said, files = self._hear(lambda: f"the publisher of {self._name!r} has not answered")
            if "refused" in said:
                raise RuntimeError(f"the publisher of {self._name!r} refuses: {said['refused']}")
            if not files or said.get("version") != VERSION:
                raise RuntimeError(f"the publisher of {self._name!r} has ended, or is another's")
            self._length = said["length"]
            self._feed = Feed(files[0].number, publishes=False)
            self._windows = {0: Window(files[0].number, maps=False)}
            self._inbox = Inbox(f"subscribe({self._name})", self._options)
        return self._inbox

    def _hear(self, what: Callable[[], str]) -> tuple[dict[str, Any], list[Descriptor]]:
        while True:
            said = self._peer.receive()
            if said is not None:
                return said
            if self._peer.has_ended:
                raise RuntimeError(f"{what()}: its process {self._peer.pid} has ended")
            time.sleep(_SLICE_S / 10)

    # Words of the publisher's

    def _skip(self) -> None:
        """Read no more of the epoch under way, and say so: the others must not wait for it."""
        if self._epoch and self._feed is not None:
            self._skipped, self._epoch = self._epoch, 0
            self._feed.reply(Reply.SKIP, self._skipped)
            self._feed.drop()

    def _next(self, turn: int) -> Any:
        if turn != self._turn:
            raise RuntimeError("a later iter() has begun the next epoch, or it was closed")
        self._check_owner()
        inbox = self._join()
        if not self._epoch:
            self._seek()
            inbox.begin_epoch(self._length)
        return inbox.next(self._copy)

    def _seek(self) -> None:
        """Find the beginning of the next epoch."""
        assert self._feed is not None
        while True:
            posted = self._take(True)
            assert posted is not None
            if posted.verb == Word.BEGIN:
                self._epoch = posted.place
            elif posted.verb in (Word.CLOSED, Word.FAILED):
                self._raise_of_the_end(posted)
            self._feed.drop()
            if self._epoch:
                return

    def _copy(self, may_wait: bool) -> bool:
        """Copy the next batch in; as `Inbox.next` asks."""
        feed, inbox = self._feed, self._inbox
        assert feed is not None and inbox is not None
        posted = self._take(may_wait)
        if posted is None:
            return False
        if posted.verb == Word.BATCH:
            inbox.put(posted, self._window(posted.segment), self._check)
            feed.give_back()
            return True
        if not may_wait:
            return False
        if posted.verb == Word.END:
            self._epoch = 0
            feed.drop()
            inbox.end_epoch()
            raise StopIteration
        self._raise_of_the_end(posted)
        return False

    def _take(self, may_wait: bool) -> Posted | None:
        """
        Take the next word in hand; None if none is there and it may not be waited for.

        Raises:
            RuntimeError: The publisher has ended, or has given this process up.
        """
        feed = self._feed
        assert feed is not None
        if feed.in_hand is not None or feed.take(0):
            return feed.in_hand
        self._check()
        return self._wait(feed) if may_wait else None

    def _wait(self, feed: Feed) -> Posted | None:
        began = time.monotonic()
        while not feed.take(_SLICE_S):
            self._check()
            if self._peer.has_ended and not feed.take(0):
                raise RuntimeError(
                    f"the publisher of {self._name!r}, process {self._peer.pid}, has died: batches "
                    "that are here stay valid; start it again, and subscribe again"
                )
            if time.monotonic() - began > TELL_S:
                self._tell_of_laggard()
        if self._inbox is not None:
            self._inbox.note_wait(time.monotonic() - began)
        return feed.in_hand

    def _tell_of_laggard(self) -> None:
        assert self._feed is not None
        awaited = self._feed.awaited
        if awaited and awaited != self._warned_of:
            self._warned_of = awaited
            warn(
                f"all subscribers of {self._name!r} wait for the one with pid {awaited}, which has "
                f"given no batch back for {TELL_S:g} s"
            )

    def _check(self) -> None:
        assert self._feed is not None
        if self._feed.is_given_up:
            raise RuntimeError(
                f"the publisher of {self._name!r} has given this process up, because the others "
                "waited for it longer than the timeout of publish(): subscribe again"
            )

    def _window(self, number: int) -> Window:
        """Find the file in which a batch lies; those of earlier epochs are closed."""
        while number not in self._windows:
            said, files = self._hear(lambda: f"the publisher of {self._name!r} sent no segment")
            if "segment" not in said or not files:
                raise RuntimeError(f"the publisher of {self._name!r} has ended")
            self._windows = {0: self._windows[0], said["segment"]: Window(files[0].number)}
        return self._windows[number]

    def _raise_of_the_end(self, posted: Posted) -> None:
        assert self._feed is not None
        if posted.verb == Word.FAILED:
            # Written by a process of this user, into a file that no other can open.
            error = pickle.loads(os.pread(self._feed.descriptor, posted.length, posted.offset))
            raise error
        raise RuntimeError(f"the publisher of {self._name!r} has ended: no more epochs come")


class _Epoch:
    """One epoch of a subscription."""

    def __init__(self, subscription: Subscription, turn: int) -> None:
        self._subscription = subscription
        self._turn = turn
        self._is_over = False

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._subscription)

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        try:
            return self._subscription._next(self._turn)
        except StopIteration:
            self._is_over = True
            raise

    def __del__(self) -> None:
        if self._subscription._turn == self._turn and not self._is_over:
            self._subscription._skip()
