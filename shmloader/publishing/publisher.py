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
import time
import warnings
from collections.abc import Iterator
from typing import Any

from shmloader import log
from shmloader.core import Lent, Word
from shmloader.processes.watching import wait_until
from shmloader.publishing.meeting import Meeting, Peer
from shmloader.publishing.member import Lease, Member
from shmloader.transport.transport import Transport
from shmloader.way_out import WayOut

VERSION = 1  # of what is said, here and in csrc/feed.h
TELL_S = 2.0  # after which the others are told for whom they wait
_LOOK_S = 0.001  # between two looks while slots are missing
_SEEN_S = 0.05  # between two looks for deaths and newcomers
_HELLO_S = 5.0  # how long a newcomer may take to say who it is


class LendingWay(WayOut):
    """Delivers no batches but their leases."""

    def __init__(self, publisher: "Publisher", transport: Transport) -> None:
        transport.received.lends = True
        self.deliver = transport.received.deliver
        self._publisher, self._transport = publisher, transport

    def waiting(self) -> float:
        """Take what subscribers have given back, so that workers have slots."""
        if self._publisher.look():
            return 0.0
        return _LOOK_S if self._publisher.is_awaited(self._transport) else _SEEN_S


class Publisher:
    """
    Hands batches on: a part of an iterator, which has its batches leave by a way of its own.

    Attributes:
        members: The subscribers there are.
        joined: How many there ever were.
    """

    def __init__(
        self, name: str, subscribers: int, length: int | None, timeout_s: float | None
    ) -> None:
        """
        Take a name, and wait for nobody yet.

        Args:
            subscribers: How many there may be, and must be before the first epoch.
            length: How many batches an epoch has; None if that is not known.
            timeout_s: How long one may keep all others waiting; None: for ever.

        Raises:
            FileExistsError, PermissionError, ValueError: As for `Meeting`.
        """
        self.members: list[Member] = []
        self.joined = 0
        self.name = name
        self._wanted = subscribers
        self._welcome = {"version": VERSION, "length": length}
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._newcomers: dict[Peer, float] = {}  # -> until when they may say who they are
        self._seen_at = 0.0
        self._awaited = 0  # the pid of the subscriber for whom all wait
        self._transport: Transport | None = None
        self._epoch = 0
        self._is_closing = False
        self._meeting = Meeting(name)

    # As a part of an iterator

    def way(self, transport: Transport) -> LendingWay:
        """Make the way out of an iterator."""
        self._transport = transport
        return LendingWay(self, transport)

    # What subscribers do

    def look(self) -> bool:
        """See to the subscribers. Returns True if one has given something back, or is gone."""
        has_news = False
        for member in self.members:
            has_news |= member.collect()
        now = time.monotonic()
        if now - self._seen_at >= _SEEN_S:
            self._seen_at = now
            self._welcome_newcomers(now)
            has_news |= self._part_with_the_dead()
            self._look_for_laggard(now)
        return has_news

    def is_awaited(self, transport: Transport) -> bool:
        """Returns True if workers have no slot because subscribers have not given them back."""
        is_lent = any(member.held for member in self.members)
        return is_lent and (self._is_closing or bool(transport.requests.waiting))

    def _part_with_the_dead(self) -> bool:
        gone = [member for member in self.members if member.has_left or member.peer.has_ended]
        for member in gone:
            self._part_with(member, "left" if member.has_left else "died")
        return bool(gone)

    def _part_with(self, member: Member, why: str) -> None:
        self.members.remove(member)
        member.close()
        log.tell("publisher %r: subscriber %d %s", self.name, member.peer.pid, why)

    def _welcome_newcomers(self, now: float) -> None:
        for peer in self._meeting.accept():
            self._newcomers[peer] = now + _HELLO_S
        for peer, until in [*self._newcomers.items()]:
            said = peer.receive()
            if said is None and now < until:
                continue
            del self._newcomers[peer]
            with contextlib.suppress(OSError):
                if said is not None and self._admit(peer, said[0]):
                    continue
            peer.close()

    def _admit(self, peer: Peer, said: dict[str, Any]) -> bool:
        self._part_with_the_dead()
        if said.get("version") != VERSION:
            peer.send({"refused": "the publisher has another version of shmloader"})
        elif len(self.members) >= self._wanted:
            pids = ", ".join(str(member.peer.pid) for member in self.members)
            peer.send({"refused": f"it has its {self._wanted} subscribers: processes {pids}"})
        else:
            member = Member(peer)
            peer.send(self._welcome, member.feed.descriptor)
            self.members.append(member)
            self.joined += 1
            return True
        return False

    def _look_for_laggard(self, now: float) -> None:
        """Say for whom all wait, and give it up if that takes too long."""
        late = [member for member in self.members if member.held]
        laggard = min(late, key=lambda member: member.since, default=None)
        waits = self._transport is not None and self.is_awaited(self._transport)
        late_s = now - laggard.since if laggard is not None and waits else 0.0
        if laggard is not None and late_s > self._timeout_s:
            # First: whatever it reads from here on may change under it.
            laggard.feed.give_up()
            self._part_with(laggard, f"was given up after {late_s:.1f} s")
        self._note_awaited(laggard.peer.pid if laggard is not None and late_s > TELL_S else 0)

    def _note_awaited(self, pid: int) -> None:
        if pid == self._awaited:
            return
        self._awaited = pid
        for member in self.members:
            member.feed.note_awaited(pid)
        if pid:
            warnings.warn(
                f"publisher {self.name!r}: all wait for the subscriber with pid {pid}, which has "
                f"given nothing back for {TELL_S:g} s (timeout= would give it up)",
                stacklevel=2,
            )

    # What they are told

    def gather(self) -> None:
        """
        Wait until as many subscribers have come as were announced.

        Raises:
            TimeoutError: They did not come in time.
        """
        until = time.monotonic() + self._timeout_s
        while self.joined < self._wanted:
            if time.monotonic() > until:
                raise TimeoutError(
                    f"{self.joined} of {self._wanted} subscribers of {self.name!r} have come "
                    f"within {self._timeout_s:g} s"
                )
            self._pause()

    def _pause(self) -> None:
        if not self.look():
            wait_until(lambda: False, _LOOK_S)

    def publish(self, iterator: Iterator[Any]) -> Iterator[Lease]:
        """
        Hand on an epoch of a loader whose iterator has this as a part.

        Yields:
            Each batch, as long as somebody may read it.
        """
        assert self._transport is not None, "the iterator asked for its way out"
        self._epoch += 1
        for member in [*self.members]:
            self._say(member, lambda member=member: self._begin(member))
        with contextlib.suppress(GeneratorExit):  # the loop over it was broken off
            for lent in iterator:
                yield from self._hand_on(lent)
                self._leave_slots()
        for member in [*self.members]:
            self._say(member, member.end)

    def _begin(self, member: Member) -> bool:
        assert self._transport is not None
        return member.begin(self._epoch, self._transport.segment)

    def _hand_on(self, lent: Lent) -> Iterator[Lease]:
        assert self._transport is not None
        lease = Lease(lent, self._epoch, self._transport.segment)
        try:
            for member in [*self.members]:
                if member.epoch == self._epoch:
                    self._say(member, lambda member=member: member.tell(lease))
            yield lease
        finally:
            lease.drop()

    def _say(self, member: Member, say: Any) -> None:
        """Tell one subscriber something, once there is room for it."""
        try:
            while member in self.members and not say():
                self._pause()
        except OSError as error:
            member.feed.give_up()
            self._part_with(member, f"cannot be told anything: {error}")

    def _leave_slots(self) -> None:
        """Wait until workers have a slot: a loader's own timeout is for them, not for this."""
        self.look()
        assert self._transport is not None
        while self.members and self._transport.figures.idle_slots() == 0:
            self._pause()

    def close(self, error: BaseException | None = None, timeout_s: float = math.inf) -> None:
        """
        Say that nothing more comes, and wait until all has been read, at most that long.

        Args:
            error: What went wrong; then nothing is waited for.
        """
        self._is_closing = True
        until = time.monotonic() + timeout_s
        for member in [*self.members]:
            if error is None:
                self._say(member, lambda member=member: member.feed.say(Word.CLOSED, 0))
            else:
                with contextlib.suppress(OSError):
                    member.fail(_pickled(error))
        while error is None and any(member.held for member in self.members):
            if time.monotonic() > until:
                break
            self._pause()
        self._meeting.close()
        while self.members:
            self._part_with(self.members[-1], "was told that nothing more comes")
        for peer in self._newcomers:
            peer.close()


def _pickled(error: BaseException) -> bytes:
    try:
        text = pickle.dumps(error)
        pickle.loads(text)
    except Exception:
        text = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return text
