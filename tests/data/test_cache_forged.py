"""What any process may write over a cache by a fault: an error or a miss, never a crash."""

import mmap
import random
import time

import pytest
import torch

from shmloader import WorkerBroken, cached
from tests.helpers.kept import Fetched, content

COUNT = 20
ROOM = 1 << 20
WORDS = 4096  # where the words begin, behind the control block


class Forgery:
    """A cache that is full of samples, and its bytes to be written over."""

    def __init__(self):
        self.dataset = cached(Fetched(COUNT), ROOM)
        for index in range(COUNT):
            self.dataset[index]
        descriptor = self.dataset._memory._samples.descriptor
        self.bytes = mmap.mmap(descriptor, self.dataset.cache_stats().max_bytes)
        self.whole = bytes(self.bytes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.bytes.close()

    def word(self, index):
        return int.from_bytes(self.bytes[WORDS + 8 * index :][:8], "little")

    def write(self, offset, data):
        self.bytes[offset : offset + len(data)] = data

    def mend(self):
        """Make everything as it was, but for the counts."""
        self.bytes[:] = self.whole

    def look(self):
        """Ask for every sample. Returns how many were right, and how many were an error."""
        right = broken = 0
        for index in range(COUNT):
            try:
                sample = self.dataset[index]
            except WorkerBroken as error:
                assert "index" in str(error) or "layout" in str(error)
                broken += 1
            else:
                assert torch.equal(content(index), sample["data"])
                right += 1
        return right, broken


def number(value):
    return (value % 2**64).to_bytes(8, "little")


def test_a_word_that_leads_nowhere_is_an_error():
    """A word outside of the records is an error that says which sample; the others are there."""
    with Forgery() as forgery:
        forgery.write(WORDS + 8 * 3, number(12345 * 64))
        with pytest.raises(WorkerBroken, match="cached sample of index 3 cannot be read: its reco"):
            forgery.dataset[3]

        assert (COUNT - 1, 1) == forgery.look()


def test_a_word_that_says_nothing_is_a_miss():
    """A word of zeros has its sample fetched and kept again."""
    with Forgery() as forgery:
        forgery.write(WORDS, bytes(8 * COUNT))

        assert (COUNT, 0) == forgery.look()
        assert 2 * COUNT == forgery.dataset.cache_stats().entries


@pytest.mark.parametrize("place", range(0, 24 + 32, 4))
def test_a_damaged_head_or_layout_is_an_error(place):
    """Lengths, numbers, checksum and layout of a record are checked before they are used."""
    with Forgery() as forgery:
        at = forgery.word(5) + place
        forgery.write(at, bytes(each ^ 0xFF for each in forgery.bytes[at : at + 4]))

        assert (COUNT - 1, 1) == forgery.look()


@pytest.mark.thorough
def test_any_rubbish_is_no_crash(seeded, stress_seconds):
    """Random bytes over words, heads and layouts: never a crash or a wrong sample."""
    chance = random.Random(seeded)
    looks = errors = 0
    with Forgery() as forgery:
        deadline = time.monotonic() + stress_seconds
        while time.monotonic() < deadline:
            forgery.mend()
            for _ in range(chance.randrange(1, 6)):
                forge(forgery, chance)
            right, broken = forgery.look()
            looks += right + broken
            errors += broken
    print(f"{looks} looks at forged caches, {errors} of them errors")

    assert 0 < errors < looks


def forge(forgery, chance):
    index = chance.randrange(COUNT)
    at = int.from_bytes(forgery.whole[WORDS + 8 * index :][:8], "little")
    how = chance.randrange(5)
    if how == 0:
        forgery.write(WORDS + 8 * index, chance.randbytes(8))
    elif how == 1:
        forgery.write(WORDS + 8 * index, number(chance.randrange(ROOM // 64) * 64))
    elif how == 2:
        forgery.write(WORDS + 8 * index, number(forgery.word(chance.randrange(COUNT))))
    else:
        place = at + chance.randrange(50)  # in head and layout; a payload has no checksum
        forgery.write(place, chance.randbytes(chance.choice((1, 4, 8))))
