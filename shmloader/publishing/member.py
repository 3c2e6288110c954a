"""One subscriber, as its publisher knows it: what it was told of and has not given back."""

import os
import time
from collections.abc import Iterable

from shmloader.core import Descriptor, Feed, Lent, Posted, Reply, Word, post_bytes
from shmloader.memory.segment import Segment, open_memfd, seal
from shmloader.publishing.meeting import Peer


class Lease:
    """
    A batch that is lent to subscribers.

    Attributes:
        lent: It, until the last of them has given it back.
        epoch: Its epoch's number.
        segment: That of its slot.
    """

    __slots__ = ("epoch", "lent", "readers", "segment")

    def __init__(self, lent: Lent, epoch: int, segment: Segment) -> None:
        self.lent = lent
        self.segment = segment
        self.epoch = epoch
        self.readers = 1  # the publisher, until all have been told

    def drop(self) -> None:
        """Take one reader off; the last one ends the lease."""
        self.readers -= 1
        if self.readers == 0:
            self.lent.end()


class Member:
    """
    A subscriber that was welcomed.

    Attributes:
        peer: Its process.
        epoch: The number of the epoch that it is told of; None: it is told of none.
        has_left: True if it reads nothing any more.
        held: By place, what it may be reading.
        since: When it last gave something back, or was told of something while it held nothing.
    """

    def __init__(self, peer: Peer) -> None:
        """
        Welcome a subscriber.

        Raises:
            OSError: It, or what is needed for it, is gone.
        """
        self.peer = peer
        self.epoch: int | None = None
        self.has_left = False
        self.held: dict[int, Lease] = {}
        self.since = time.monotonic()
        file = Descriptor(open_memfd("shmloader-feed"))
        os.ftruncate(file.number, Feed.AREA)
        seal(file.number, "SHRINK")
        self.feed = Feed(file.number, publishes=True)
        self._places = list(range(Feed.PLACES))
        self._segment: Segment | None = None
        self._number = 0  # of that segment
        self._areas: dict[int, tuple[int, int]] = {}  # by place, of what is in no slot

    def begin(self, epoch: int, segment: Segment) -> bool:
        """Tell that an epoch begins, and of its segment. Returns False if the ring is full."""
        if segment is not self._segment:
            # With a descriptor that can only read: no mistake there damages a batch.
            path = f"/proc/self/fd/{segment.descriptor}"
            file = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            self.peer.send({"segment": self._number + 1}, file.number)
            self._segment, self._number = segment, self._number + 1
        if not self.feed.say(Word.BEGIN, epoch):
            return False
        self.epoch = epoch
        return True

    def end(self) -> bool:
        """Tell that the epoch is over. Returns False if the ring is full."""
        if self.epoch is not None and not self.feed.say(Word.END, self.epoch):
            return False
        self.epoch = None
        return True

    def tell(self, lease: Lease) -> bool:
        """Tell of a batch. Returns False if there is no place for it yet."""
        if not self._places:
            return False
        if not self.held:
            self.since = time.monotonic()
        place = self._places[-1]
        lent = lease.lent
        posted = lent.post(self._number) if lent.in_slot else self._write(place, lent)
        lease.readers += 1
        self.held[place] = lease
        if not self.feed.post(place, posted, Word.BATCH):
            del self.held[place]
            lease.readers -= 1
            return False
        self._places.pop()
        return True

    def _write(self, place: int, lent: Lent) -> Posted:
        """Write a batch that is in no slot into the feed's own file, behind the others."""
        start = max((end for _, end in self._areas.values()), default=Feed.AREA)
        self._areas[place] = start, start + lent.length
        return lent.write_to(self.feed.descriptor, start)

    def fail(self, text: bytes) -> None:
        """Tell of an error, after which nothing comes."""
        start = max((end for _, end in self._areas.values()), default=Feed.AREA)
        os.pwrite(self.feed.descriptor, text, start)
        if self._places:
            self.feed.post(self._places.pop(), post_bytes(text, start), Word.FAILED)

    def collect(self) -> bool:
        """Take what it has given back. Returns True if there was something."""
        replies = self.feed.replies()
        for reply, number in replies:
            if reply == Reply.RETURN:
                self._free([number] if number in self.held else [])
            elif reply == Reply.SKIP:
                self._free([place for place, lease in self.held.items() if lease.epoch <= number])
                self.epoch = None if self.epoch == number else self.epoch
            else:
                self.has_left = True
        if replies:
            self.since = time.monotonic()
        return bool(replies)

    def _free(self, places: Iterable[int]) -> None:
        for place in places:
            self._places.append(place)
            self._areas.pop(place, None)
            self.held.pop(place).drop()

    def close(self) -> None:
        """Know it no more: it reads nothing any more, or was told that it must not."""
        self._free([*self.held])
        self.peer.close()
