"""The subscriber's side: each batch is copied once into a ring of its own, then given back."""

from __future__ import annotations

import atexit
import os
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NoReturn, Self

from shmloader.core import (
    Descriptor,
    Feed,
    HandsOut,
    InHand,
    Posted,
    Reply,
    Window,
    Word,
    generation,
)
from shmloader.memory import page_locks
from shmloader.options.options import Device, Options
from shmloader.pinning.pinned_slots import can_pin
from shmloader.publishing.inbox import Inbox
from shmloader.publishing.meeting import Peer, connect
from shmloader.publishing.publisher import VERSION
from shmloader.setup.arguments import check_flag, check_seconds
from shmloader.stats import Held, Stats
from shmloader.stats.words import duration, percent
from shmloader.transport.remote_error import RemoteError

if TYPE_CHECKING:
    import torch

_SLICE_S = 0.05  # between two looks whether the publisher lives
_REASON_S = 1.0  # how long an epoch's end before its time waits for the reason, which follows
_EXIT_S = 1.0  # how long the program's end waits for a daemon thread's next()
_OF_AN_EPOCH = frozenset([Word.BATCH, Word.END, Word.LEFT])


def subscribe(
    name: str,
    *,
    device: Device | str | torch.device | None = None,
    pin_memory: bool = False,
    timeout: float = 60.0,
) -> Subscription:
    """
    Receive the batches that another process of this user publishes.

    Args:
        name: As in `publish(loader, name, subscribers=...)` there.
        device, pin_memory: As for `DataLoader`.
        timeout: How long to wait for a publisher of that name, in seconds.

    Returns:
        An iterable of batches: each iter() is the publisher's next epoch, which begins here with
        the first next().

    Raises:
        TimeoutError: There is no publisher of that name.
        PermissionError: The publisher belongs to another user.
        ValueError, TypeError: The name is not valid, the device does not exist, or another argument
            is of a wrong type.
    """
    options = Options(device=device)  # type: ignore[arg-type]
    if check_flag("pin_memory", pin_memory) and options.device is not None:
        raise ValueError("pin_memory=True and device exclude each other: omit pin_memory")
    pins = pin_memory and can_pin()
    timeout_s = check_seconds("timeout", timeout, "math.inf to wait forever")
    return Subscription(name, options, connect(name, timeout_s), pins)


class Subscription:
    """
    Batches that another process publishes: the same for all that subscribe, in its order.

    Threads take turns, as in a loader's iterator: one lock is held by `next()`, by the start of an
    epoch and by the end. The process is checked before the lock.
    """

    # Once the publisher has answered.
    _feed: Feed
    _inbox: Inbox | None = None
    _length: int | None
    _ends = False  # with this program

    def __init__(
        self,
        name: str,
        options: Options,
        peer: Peer,
        pins: bool = False,
        lock: threading.RLock | None = None,
    ) -> None:
        """
        Say hello; the publisher answers when it looks, at the latest when its epoch begins.

        Args:
            lock: The publisher's, if it is this process.
        """
        self._name = name
        self._options, self._pins = options, pins
        self._peer = peer
        self._lock = lock or threading.RLock()
        self._is_closed = False
        self._windows: dict[int, Window] = {}  # by the numbers of the files
        self._epoch: int | None = None  # the one that is read, as the publisher numbers it
        self._turn = 0  # counts calls of iter()
        self._generation = generation()
        if lock is None:
            _of_others.add(self)
            _leave_at_exit()
        peer.send({"version": VERSION, "pid": os.getpid()})

    # What is asked of an iterable

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"Subscription({self._name!r} of process {self._peer.pid}{state})"

    def __len__(self) -> int:
        """Count the batches of an epoch, as the publisher's loader does."""
        self._join()
        if self._length is None:
            raise TypeError(f"the loader that is published as {self._name!r} has no length")
        return self._length

    def __iter__(self) -> Iterator[Any]:
        """Begin the publisher's next epoch; what is left of this one is skipped."""
        return self.begin(None)

    def begin(self, told: Iterator[None] | None) -> Iterator[Any]:
        """Begin an epoch; told: tells this process of one batch more, if it is the publisher."""
        self._check_owner()
        with self._lock:
            self._check_open()
            self._skip(self._turn)
            self._turn += 1
            return _Epoch(self, self._turn, told)

    def stats(self) -> Stats:
        """Count what came here, as a loader's `stats()` does; `bytes` are those of the copies."""
        stats = self._join().pool.stats()
        found, vain, ns = self._feed.looked()
        return replace(stats, looks_found=found, looks_vain=vain, looks_s=ns / 1e9)

    def held(self) -> list[Held]:
        """List the batches that still occupy a slot of this process's own ring."""
        return self._join().pool.held()

    def report(self) -> str:
        """Say in a line what the loop waited for in its last epoch."""
        epochs = self._join().pool.history.epochs()
        if not epochs or not epochs[-1].batches:
            return "nothing to report: read an epoch first"
        last = epochs[-1]
        waited = last.wait_s / max(last.wall_s, 1e-9)
        copied = max(0.0, last.next.total_s - last.wait_s)
        return (
            f"of {duration(last.wall_s)}, {percent(waited)} went to waiting for the publisher "
            f"(pid {self._peer.pid}) or its slowest subscriber, and {duration(copied)} to copies "
            f"of {last.batches} batches: the publisher's loader.report() shows why it is late"
        )

    def close(self) -> None:
        """Leave: the publisher counts on this process no more. Batches that are held stay valid."""
        self._close()
        page_locks.look_at_idle()

    def _close(self) -> None:
        if self._generation != generation():
            return
        self._is_closed = True  # first: a next() that waits on another thread ends by it
        with self._lock:
            self._peer.close()
            if self._inbox is not None:
                self._inbox.close()

    def _leave_with_program(self) -> None:
        self._ends = True
        if self._generation == generation():
            self._is_closed = True
            self._lock.acquire(timeout=_EXIT_S)  # for good: a daemon thread's next() may not go on
            self._peer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the interpreter the kernel closes all, and names of modules may be gone.
        if not is_exiting():
            self._close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the subscription to {self._name!r} cannot be pickled or copied: call subscribe() in "
            "the process that reads it, and announce one more to publish()"
        )

    @property
    def _publisher(self) -> str:
        return f"the publisher of {self._name!r}, process {self._peer.pid},"

    # Coming and going

    def _check_owner(self) -> None:
        if self._generation != generation():
            raise self._is_parents()

    def _is_parents(self) -> RuntimeError:
        return RuntimeError(
            f"process {os.getpid()} was forked from the subscriber of {self._name!r}: call "
            "subscribe() in this process, and announce one more to publish()"
        )

    def _join(self) -> Inbox:
        """Wait until the publisher has answered, and open the ring."""
        self._check_owner()
        return self._inbox or self._open()

    def _open(self) -> Inbox:
        with self._lock:
            if not self._windows:
                said, file = self._hear()
                self._length = said["length"]
                self._feed = Feed(file.number, publishes=False)
                self._windows = {0: Window(file.number, maps=False)}
            if self._inbox is None:
                self._inbox = Inbox(f"subscribe({self._name})", self._options, self._pins)
            return self._inbox

    def _hear(self) -> tuple[dict[str, Any], Descriptor]:
        """Wait for a file of the publisher's."""
        self._check_open()
        while not (heard := self._peer.receive(_SLICE_S)) and not self._peer.has_ended:
            self._check_open()
        said, files = heard or self._peer.receive(0) or ({}, [])
        if not files:
            reason = said.get("refused", f"the publisher, process {self._peer.pid}, has ended")
            raise RuntimeError(f"this process cannot read the batches of {self._name!r}: {reason}")
        return said, files[0]

    # Words of the publisher's

    def _skip(self, turn: int) -> None:
        """Read no more of that turn's epoch, and say so: the others must not wait for it."""
        if self._generation != generation() or turn != self._turn:
            return
        with self._lock:
            if self._epoch is not None and turn == self._turn:
                # In this order: if an interrupt comes between, it is said twice, and not never.
                self._feed.reply(Reply.SKIP, self._epoch)
                self._epoch = None
                posted = self._feed.in_hand
                if posted is not None and posted.verb in _OF_AN_EPOCH:
                    self._feed.drop()

    def _next(self, epoch: _Epoch) -> InHand:
        self._check_open()
        if epoch.turn != self._turn:
            raise RuntimeError("a later iter() has begun the next epoch")
        inbox = self._join()
        if not epoch.has_begun:
            self._begin(epoch, inbox)
        elif self._epoch is None:
            self._raise_of_leaving(epoch)
        return inbox.next(partial(self._copy, epoch))

    def _begin(self, epoch: _Epoch, inbox: Inbox) -> None:
        """Wait for the beginning of an epoch; what comes before it was skipped."""
        while not epoch.has_begun:
            posted = self._take(epoch)
            if posted.verb == Word.BEGIN:
                if self._epoch is None:
                    inbox.begin_epoch(self._length)
                    self._epoch = posted.place
                epoch.has_begun = True
            elif posted.verb not in _OF_AN_EPOCH:
                self._raise_of_the_end(posted)
            self._feed.drop()

    def _copy(self, epoch: _Epoch, may_wait: bool) -> bool:
        """Copy the next batch in; as `Inbox.next` asks."""
        feed, inbox = self._feed, self._inbox
        assert inbox is not None
        if not may_wait and not feed.take(0):
            return False
        posted = self._take(epoch)
        if posted.verb == Word.BATCH:
            inbox.put(posted, self._window(posted.segment), self._check)
            feed.give_back()
            epoch.count += 1
            return True
        if not may_wait:
            return False
        epoch.is_over = posted.verb == Word.END
        self._epoch = None
        if posted.verb in _OF_AN_EPOCH:
            feed.drop()
        inbox.end_epoch()
        if epoch.is_over:
            raise StopIteration
        self._raise_of_leaving(epoch)

    def _take(self, epoch: _Epoch) -> Posted:
        """Wait for the publisher's next word, which is in hand then."""
        feed = self._feed
        while True:
            if not feed.take(0):
                began = time.monotonic()
                if epoch.told is None:
                    self._wait()
                else:
                    self._tell(epoch.told)
                if self._inbox is not None:
                    self._inbox.note_wait(time.monotonic() - began)
            posted = feed.in_hand
            assert posted is not None
            if posted.verb != Word.BEGIN or not epoch.has_begun or posted.place != self._epoch:
                return posted
            feed.drop()  # an interrupt has left it in hand

    def _wait(self) -> None:
        """Wait until a word is in hand."""
        feed = self._feed
        while not feed.take(_SLICE_S):
            self._check_open()
            if feed.is_given_up and not feed.take(0):
                self._raise_of_giving_up()
            if self._peer.has_ended and not feed.take(0):
                raise RuntimeError(
                    f"{self._publisher} has died: batches that were delivered stay valid; start "
                    "it again, and subscribe again"
                )

    def _tell(self, told: Iterator[None]) -> None:
        """Have this process told of one batch more, as all others are."""
        next(told, None)
        if not self._feed.take(0):
            self._check()
            self._raise_of_an_error()

    def _check_open(self) -> None:
        if self._is_closed:
            if self._ends and threading.current_thread().daemon:
                sys.exit()  # a moment before the interpreter ends this thread, as silently
            raise RuntimeError(
                f"the publication {self._name!r} was closed in this process, by this thread or "
                "another: subscribe, or publish, again"
            )

    def _check(self) -> None:
        """Raise if a batch that was copied may be torn, or this was closed."""
        self._check_open()
        if self._feed.is_given_up:
            self._raise_of_giving_up()

    def _raise_of_giving_up(self) -> NoReturn:
        """Say why the publisher gave this process up, which may stand at the end of the feed."""
        feed = self._feed
        while feed.take(0):
            posted = feed.in_hand
            if posted is not None and posted.verb in (Word.CLOSED, Word.FAILED):
                self._raise_of_the_end(posted)
            feed.drop()
        raise RuntimeError(
            f"the publisher of {self._name!r} has disconnected this process, because the others "
            "waited for it longer than the timeout of publish(): subscribe again"
        )

    def _window(self, number: int) -> Window:
        """Find the file in which a batch lies; those of earlier epochs are closed."""
        while number not in self._windows:
            said, file = self._hear()
            self._windows = {0: self._windows[0], said["segment"]: Window(file.number)}
        return self._windows[number]

    def _raise_of_leaving(self, epoch: _Epoch) -> NoReturn:
        """Say why an epoch had no end: if the reason is in the feed, it comes next."""
        if epoch.told is not None:
            self._raise_of_an_error()
        feed = self._feed
        until = time.monotonic() + _REASON_S
        while not feed.take(_SLICE_S) and not self._peer.has_ended and time.monotonic() < until:
            self._check_open()
        posted = feed.in_hand
        if posted is not None and posted.verb == Word.FAILED:
            self._raise_of_the_end(posted)
        of_all = "" if self._length is None else f" of {self._length}"
        raise RuntimeError(
            f"{self._publisher} has left its epoch after {epoch.count}{of_all} batches, not at "
            "its end: have all processes leave their loops at the same batch, or at its end"
        )

    def _raise_of_an_error(self) -> NoReturn:
        raise RuntimeError(
            f"an error in next() ended this epoch of {self._name!r}: iter() begins the next one"
        )

    def _raise_of_the_end(self, posted: Posted) -> NoReturn:
        if posted.verb == Word.FAILED:
            # Written by a process of this user, into a file that no other can open.
            text = os.pread(self._feed.descriptor, posted.length, posted.offset)
            failed: RemoteError = pickle.loads(text)
            error = failed.open(f"{self._publisher} has ended: ")
            if issubclass(type(error), Exception):
                raise error
            raise RuntimeError(f"{self._publisher} has ended: {failed.text}")
        raise RuntimeError(f"the publisher of {self._name!r} has ended, and runs no more epochs")


class _Epoch(HandsOut):
    """
    One epoch of a subscription; an interrupt in `next()` loses no batch.

    Attributes:
        turn: Which call of iter() it is.
        told: Tells this process of one batch more, if it is the publisher; None: it is another.
        has_begun: True if the publisher has said so.
        is_over: True if the publisher has said that this was the last batch.
        count: How many batches, or errors in their places, have come.
    """

    def __init__(self, subscription: Subscription, turn: int, told: Iterator[None] | None) -> None:
        self._subscription = subscription
        self.turn = turn
        self.told = told
        self.has_begun = self.is_over = False
        self.count = 0
        # What `HandsOut` asks for.
        self._turn, self._generation = subscription._lock, subscription._generation
        self._num_yielded = 0

    def __iter__(self) -> Self:
        return self

    def _is_parents(self) -> RuntimeError:
        return self._subscription._is_parents()

    def _make(self) -> InHand:
        if self.is_over:
            raise StopIteration
        return self._subscription._next(self)

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_exiting() and not self.is_over:
            self._subscription._skip(self.turn)

    def __reduce__(self) -> NoReturn:
        self._subscription.__reduce__()


_of_others: weakref.WeakSet[Subscription] = weakref.WeakSet()


@cache
def _leave_at_exit() -> None:
    """Have all leave before multiprocessing waits for its children: one may be the publisher."""

    def leave() -> None:
        for subscription in list(_of_others):
            subscription._leave_with_program()

    atexit.register(leave)
