"""
The publisher's side: which subscribers there are, and which of them every batch waits for.

A batch that a loader delivers is not decoded here. It stays in its slot, under a lease that ends
when each subscriber that was told of it has given it back, or is gone. So the slots bound how far
subscribers are apart, and nothing else is kept of a batch. There is no thread: whatever subscribers
do is seen where this process asks its loader, or waits for it.
"""

import contextlib
import math
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from shmloader import log
from shmloader.core import Lent, Word, generation
from shmloader.processes.channel import Channel
from shmloader.processes.watching import wait_until
from shmloader.publishing.meeting import Meeting, Peer
from shmloader.publishing.member import Member
from shmloader.transport import looking
from shmloader.transport.client import warn_aside
from shmloader.transport.delivery import Delivery
from shmloader.transport.remote_error import RemoteError
from shmloader.transport.transport import Transport

VERSION = 3  # of what is said, here and in csrc/feed.h
_TELL_S = 2.0  # after which a warning names for whom all wait
_LOOK_S = 0.001  # between two looks while slots are missing
_SEEN_S = 0.05  # between two looks for deaths and newcomers


class Publisher(Delivery):
    """
    Hands a loader's batches on: the delivery of its iterator, which hands out leases.

    Attributes:
        members: The subscribers there are, in the order in which they are told.
        lock: Held by this process's `next()`, by the start of its epochs and by the end.
    """

    def __init__(self, name: str, subscribers: int, length: int | None, timeout_s: float) -> None:
        """Take a name, and wait for nobody yet; length: of an epoch, if that is known."""
        self.members: list[Member] = []
        self.lock = threading.RLock()
        self.name = name
        self._wanted = subscribers
        self._joined = 0  # how many there ever were
        self._length = length
        self._timeout_s = timeout_s
        self._own: Member | None = None  # this process, which is none of those announced
        self._newcomers: list[Peer] = []  # they have not said who they are
        self._seen_at = 0.0
        self._awaited = 0  # the pid of the subscriber for whom all wait
        self._transport: Transport | None = None
        self._epoch = 0
        self._is_stopped = self._is_closing = False
        self._generation = generation()
        self._meeting = Meeting(name)

    def delivery(self, transport: Transport) -> "Publisher":
        """Be the delivery of an iterator, as one of its parts."""
        self._transport = transport
        transport.received.lends = True
        self.deliver = transport.received.deliver
        return self

    def waiting(self) -> float:
        """Take what subscribers have given back, so that workers have slots."""
        self._check_open()
        if self._look():
            return 0.0
        return _LOOK_S if self._is_awaited() else _SEEN_S

    @property
    def is_of_another_process(self) -> bool:
        """True in a forked child of the process that publishes."""
        return self._generation != generation()

    def stop(self) -> None:
        """Have a `next()` that waits on another thread end with an error."""
        self._is_stopped = True

    # What subscribers do

    @property
    def is_left(self) -> bool:
        """True if no other process reads."""
        return all(member is self._own for member in self.members)

    def _look(self) -> bool:
        """See to the subscribers. Returns True if one has given something back, or is gone."""
        has_news = False
        for member in self.members:
            has_news |= member.collect()
        now = time.monotonic()
        if now - self._seen_at >= _SEEN_S:
            self._seen_at = now
            self._welcome_newcomers()
            has_news |= self._part_with_the_dead()
            self._look_for_laggard(now)
        return has_news

    def _check_open(self) -> None:
        if self._is_stopped and not self._is_closing:
            raise RuntimeError(f"another thread closed the publication {self.name!r}")

    def _pause(self) -> None:
        self._check_open()
        if not self._look():
            wait_until(lambda: False, _LOOK_S)

    def _is_awaited(self) -> bool:
        """Returns True if workers have no slot because subscribers have not given them back."""
        is_lent = any(member.held for member in self.members)
        waits = self._transport is not None and self._transport.requests.lacks_room
        return is_lent and (self._is_closing or waits)

    def _part_with_the_dead(self) -> bool:
        gone = [member for member in self.members if member.peer.has_ended]
        for member in gone:
            self._part_with(member, "has left")
        return bool(gone)

    def _part_with(self, member: Member, why: str) -> None:
        self.members.remove(member)
        member.close()
        log.tell("publisher %r: subscriber %d %s", self.name, member.peer.pid, why)

    def _welcome_newcomers(self) -> None:
        self._newcomers += self._meeting.accept()
        for peer in [*self._newcomers]:
            heard = peer.receive(0)
            if heard is None:
                continue
            self._newcomers.remove(peer)
            said, _ = heard
            peer.pid = peer.pid or said.get("pid", 0)
            reason = self._why_not(said)
            with contextlib.suppress(OSError):  # it has left
                if reason is None:
                    self._admit(peer)
                    self._joined += 1
                    continue
                peer.send({"refused": reason})
            peer.close()

    def _why_not(self, said: dict[str, Any]) -> str | None:
        self._part_with_the_dead()
        others = [member.peer.pid for member in self.members if member is not self._own]
        if said.get("version") != VERSION:
            return "the publisher has another version of shmloader"
        if len(others) >= self._wanted:
            pids = ", ".join(map(str, others))
            return f"the publisher has its {self._wanted} subscribers: processes {pids}"
        return None

    def _admit(self, peer: Peer) -> Member:
        member = Member(peer)
        peer.send({"length": self._length}, member.feed.descriptor)
        self.members.insert(0, member)
        return member

    def join(self) -> Peer:
        """Have this process as one more, which is told last. Returns its end of a connection."""
        own, peer = map(Peer, Channel.pair())
        self._own = self._admit(peer)
        self.members.append(self.members.pop(0))
        return own

    def _look_for_laggard(self, now: float) -> None:
        """Say for whom all wait, and give it up if that takes too long."""
        late = [member for member in self.members if member.held] if self._is_awaited() else []
        laggard = min(late, key=lambda member: member.since, default=None)
        late_s = 0.0 if laggard is None else now - laggard.since
        awaited = 0 if laggard is None or late_s <= _TELL_S else laggard.peer.pid
        if laggard is not None and late_s > self._timeout_s:
            self._part_with(laggard, f"was disconnected after {late_s:.1f} s")
        if awaited == self._awaited:
            return
        self._awaited = awaited
        if awaited:
            warn_aside(
                f"publisher {self.name!r}: all subscribers wait for the one with pid {awaited}, "
                f"which has released no batch for {_TELL_S:g} s (timeout= would disconnect it)"
            )

    # What they are told

    def gather(self) -> None:
        """Wait until as many subscribers have come as were announced; raise a TimeoutError."""
        until = time.monotonic() + self._timeout_s
        while self._joined < self._wanted:
            if time.monotonic() > until:
                raise TimeoutError(
                    f"{self._joined} of {self._wanted} subscribers of {self.name!r} have come "
                    f"within {self._timeout_s:g} s"
                )
            self._pause()

    def publish(self, iterator: Iterator[Lent]) -> Iterator[None]:
        """Hand on an epoch of a loader, whose iterator has this as a part, batch by batch."""
        assert self._transport is not None, "the iterator asked for its delivery"
        transport = self._transport
        self._epoch += 1
        looking.begin(self, len(self.members))
        self._tell_all(Member.begin, self._epoch, transport.segment)
        for lent in iterator:
            self._tell_all(Member.tell, lent)
            del lent  # from here on the subscribers' alone
            yield
            self._look()
            # Here, because a loader's own timeout is for its workers.
            while not self.is_left and transport.ledger.idle_slots() == 0:
                self._pause()
        self._tell_all(Member.end, Word.END)

    def leave(self) -> None:
        """Tell of no more of this epoch, though it has more batches."""
        self._tell_all(Member.end, Word.LEFT)

    def _tell_all(self, tell: Callable[..., bool], *words: Any) -> None:
        """Tell each subscriber something, once there is room for it."""
        for member in [*self.members]:
            try:
                while member in self.members and not tell(member, *words):
                    self._pause()
            except OSError as error:
                self._part_with(member, f"cannot be reached: {error}")

    def finish(self, error: BaseException | None = None, timeout_s: float = math.inf) -> None:
        """Say that nothing more comes, or why, and wait until all was read, at most that long."""
        if self.is_of_another_process:
            return  # a forked child: all of this is its parent's
        self.stop()
        looking.end(self)
        with self.lock:
            self._is_closing = True
            until = time.monotonic() + timeout_s
            if error is None:
                self._tell_all(lambda member: member.feed.say(Word.CLOSED, 0))
            else:
                self._tell_all(Member.fail, pickle.dumps(RemoteError.of(error)))
            while any(member.held for member in self.members) and time.monotonic() < until:
                self._pause()
            self._meeting.close()
            while self.members:
                self._part_with(self.members[-1], "was notified of the end")
            for peer in self._newcomers:
                peer.close()
