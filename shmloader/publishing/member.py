"""One subscriber, as its publisher knows it: what it was told of and has not given back."""

import os
import time
from typing import NamedTuple

from shmloader.core import Descriptor, Feed, Lent, Reply, Word, post_bytes
from shmloader.memory.segment import Segment, open_memfd, seal
from shmloader.publishing.meeting import Peer
from shmloader.transport import looking


class Told(NamedTuple):
    """A batch that a subscriber may be reading. Its lease ends with the last reference to it."""

    lent: Lent
    epoch: int
    end: int  # of what it takes in the feed's own file


class Member:
    """
    A subscriber that was welcomed.

    Attributes:
        peer: Its process.
        feed: What is shared with it.
        epoch: The number of the epoch that it is told of; None: it is told of none.
        held: By place, what it may be reading.
        since: When it last gave something back, or was told of something while it held nothing.
    """

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.epoch: int | None = None
        self.held: dict[int, Told] = {}
        self.since = time.monotonic()
        file = open_memfd("shmloader-feed")
        os.ftruncate(file.number, Feed.AREA)
        seal(file.number, "SHRINK")
        self.feed = Feed(file.number, publishes=True)
        self._places = list(range(Feed.PLACES))
        self._segment: Segment | None = None
        self._number = 0  # of that segment

    def begin(self, epoch: int, segment: Segment) -> bool:
        """Tell that an epoch begins, and of its segment. Returns False if the ring is full."""
        if segment is not self._segment:
            # With a descriptor that can only read: no mistake there damages a batch.
            path = f"/proc/self/fd/{segment.descriptor}"
            file = Descriptor.opened(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
            self.peer.send({"segment": self._number + 1}, file.number)
            self._segment, self._number = segment, self._number + 1
        self.feed.allow_looks(looking.may_look())
        if not self.feed.say(Word.BEGIN, epoch):
            return False
        self.epoch = epoch
        return True

    def end(self, word: Word) -> bool:
        """Tell no more of the epoch: it is over, or LEFT. Returns False if the ring is full."""
        if self.epoch is not None and not self.feed.say(word, self.epoch):
            return False
        self.epoch = None
        return True

    def tell(self, lent: Lent) -> bool:
        """Tell of a batch. Returns False if there is no place for it yet."""
        if self.epoch is None:
            return True
        if not self._places:
            return False
        if not self.held:
            self.since = time.monotonic()
        place, start = self._places.pop(), self._area_end()
        if lent.in_slot:
            posted, end = lent.post(self._number), Feed.AREA
        else:
            posted, end = lent.write_to(self.feed.descriptor, start), start + lent.length
        self.held[place] = Told(lent, self.epoch, end)
        if not self.feed.post(place, posted, Word.BATCH):
            self._free(place)
            return False
        return True

    def _area_end(self) -> int:
        """Where in the feed's own file nothing lies any more."""
        return max((told.end for told in self.held.values()), default=Feed.AREA)

    def fail(self, text: bytes) -> bool:
        """Tell of an error, after which nothing comes. Returns False if it has no place yet."""
        start = self._area_end()
        os.pwrite(self.feed.descriptor, text, start)
        return bool(self._places) and self.feed.post(
            self._places.pop(), post_bytes(text, start), Word.FAILED
        )

    def collect(self) -> bool:
        """Take what it has given back. Returns True if there was something."""
        replies = self.feed.replies()
        for reply, number in replies:
            if reply == Reply.RETURN and number in self.held:
                self._free(number)
            elif reply == Reply.SKIP:
                for place in [at for at, told in self.held.items() if told.epoch <= number]:
                    self._free(place)
                self.epoch = None if self.epoch == number else self.epoch
        if replies:
            self.since = time.monotonic()
        return bool(replies)

    def _free(self, place: int) -> None:
        del self.held[place]
        self._places.append(place)

    def close(self) -> None:
        """Know it no more: it is told that what it reads now may change."""
        self.feed.give_up()
        self.held.clear()
        self.peer.close()
