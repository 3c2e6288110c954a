"""The subscriber's side: each batch is copied once into a ring of its own, then given back."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Self

from shmloader.core import Descriptor, Feed, Posted, Reply, Window, Word, generation
from shmloader.errors import warn
from shmloader.options.record import Device, Options
from shmloader.publishing.inbox import Inbox
from shmloader.publishing.meeting import Peer, connect
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
    options = Options(device=device)  # type: ignore[arg-type]
    return Subscription(name, options, connect(name, timeout))


class Subscription:
    """Batches that another process publishes: the same for all that subscribe, in its order."""

    # Once the publisher has answered.
    _feed: Feed
    _inbox: Inbox | None = None
    _length: int | None

    def __init__(self, name: str, options: Options, peer: Peer, pins: bool = False) -> None:
        """Say hello; the publisher answers when it looks, at the latest when its epoch begins."""
        self._name = name
        self._options, self._pins = options, pins
        self._peer = peer
        self._windows: dict[int, Window] = {}  # by the numbers of the files
        self._epoch = 0  # the one that is read; 0: none is
        self._turn = 0  # counts calls of iter()
        self._warned_of = 0
        self._generation = generation()
        peer.send({"version": VERSION, "pid": os.getpid()})

    # What is asked of an iterable

    def __len__(self) -> int:
        """Count the batches of an epoch, as the publisher's loader does."""
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
        self._turn += 1
        self._peer.close()
        if self._inbox is not None:
            self._inbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
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
            said, file = self._hear()
            self._length = said["length"]
            self._feed = Feed(file.number, publishes=False)
            self._windows = {0: Window(file.number, maps=False)}
            self._inbox = Inbox(f"subscribe({self._name})", self._options, self._pins)
        return self._inbox

    def _hear(self) -> tuple[dict[str, Any], Descriptor]:
        """Wait for a file of the publisher's."""
        while not (heard := self._peer.receive(_SLICE_S)) and not self._peer.has_ended:
            pass
        said, files = heard or self._peer.receive(0) or ({}, [])
        if not files:
            reason = said.get("refused", f"the publisher, process {self._peer.pid}, has ended")
            raise RuntimeError(f"this process cannot read what {self._name!r} publishes: {reason}")
        return said, files[0]

    # Words of the publisher's

    def _skip(self) -> None:
        """Read no more of the epoch under way, and say so: the others must not wait for it."""
        if self._epoch:
            skipped, self._epoch = self._epoch, 0
            self._feed.reply(Reply.SKIP, skipped)
            self._feed.drop()

    def _next(self, turn: int) -> Any:
        if turn != self._turn:
            raise RuntimeError("a later iter() has begun the next epoch, or it was closed")
        inbox = self._join()
        while not self._epoch:  # what comes before its beginning was skipped
            posted = self._take()
            if posted.verb == Word.BEGIN:
                inbox.begin_epoch(self._length)
                self._epoch = posted.place
            elif posted.verb in (Word.CLOSED, Word.FAILED):
                self._raise_of_the_end(posted)
            self._feed.drop()
        return inbox.next(self._copy)

    def _copy(self, may_wait: bool) -> bool:
        """Copy the next batch in; as `Inbox.next` asks."""
        feed, inbox = self._feed, self._inbox
        assert inbox is not None
        if not may_wait and feed.in_hand is None and not feed.take(0):
            return False
        posted = self._take()
        if posted.verb == Word.BATCH:
            inbox.put(posted, self._window(posted.segment), self._check)
            feed.give_back()
            return True
        if may_wait and posted.verb == Word.END:
            self._epoch = 0
            feed.drop()
            inbox.end_epoch()
            raise StopIteration
        if may_wait:
            self._raise_of_the_end(posted)
        return False

    def _take(self) -> Posted:
        """Wait for the publisher's next word, which is in hand then."""
        feed = self._feed
        if feed.in_hand is None and not feed.take(0):
            began = time.monotonic()
            while not feed.take(_SLICE_S):
                self._check()
                if self._peer.has_ended and not feed.take(0):
                    raise RuntimeError(
                        f"the publisher of {self._name!r}, process {self._peer.pid}, has died: "
                        "batches that are here stay valid; start it again, and subscribe again"
                    )
                if time.monotonic() - began > TELL_S:
                    self._tell_of_laggard()
            if self._inbox is not None:
                self._inbox.note_wait(time.monotonic() - began)
        assert feed.in_hand is not None
        return feed.in_hand

    def _tell_of_laggard(self) -> None:
        awaited = self._feed.awaited
        if awaited and awaited != self._warned_of:
            self._warned_of = awaited
            warn(
                f"all subscribers of {self._name!r} wait for the one with pid {awaited}, which has "
                f"given no batch back for {TELL_S:g} s"
            )

    def _check(self) -> None:
        if self._feed.is_given_up:
            raise RuntimeError(
                f"the publisher of {self._name!r} has given this process up, because the others "
                "waited for it longer than the timeout of publish(): subscribe again"
            )

    def _window(self, number: int) -> Window:
        """Find the file in which a batch lies; those of earlier epochs are closed."""
        while number not in self._windows:
            said, file = self._hear()
            self._windows = {0: self._windows[0], said["segment"]: Window(file.number)}
        return self._windows[number]

    def _raise_of_the_end(self, posted: Posted) -> NoReturn:
        if posted.verb == Word.FAILED:
            # Written by a process of this user, into a file that no other can open.
            raise pickle.loads(os.pread(self._feed.descriptor, posted.length, posted.offset))
        raise RuntimeError(f"the publisher of {self._name!r} has ended: no more epochs come")


class _Epoch:
    """One epoch of a subscription."""

    def __init__(self, subscription: Subscription, turn: int) -> None:
        self._subscription = subscription
        self._turn = turn
        self._is_over = False

    def __iter__(self) -> Self:
        return self

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
