"""The file of a replacement's birth: of all that is said there, the first record decides."""

import gc
import mmap
import os

import pytest

from shmloader.processes import birth as birth_module
from shmloader.processes import watching
from shmloader.processes.birth import _RECORD, Birth, Event


class Reader:
    """Reads a birth when it is collected, in a circle with itself."""

    def __init__(self, birth, seen):
        self.birth, self.seen, self.itself = birth, seen, self

    def __del__(self):
        self.seen.append(self.birth.records())


@pytest.mark.thorough
def test_it_is_read_while_it_is_collected():
    """The collector, which finalizes files first, leaves it open for who has a __del__."""
    birth = Birth.make(b"")
    birth.add(Event.FAILED, code=11)
    number, seen = birth.fileno(), []
    Reader(birth, seen)
    del birth
    gc.collect()

    assert [[(Event.FAILED, 0, 0, 11)]] == seen
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_a_pid_that_is_used_again_is_another_process(monkeypatch):
    """A claim of a dead process does not count for the next one with its pid."""
    birth = Birth.make(b"")
    monkeypatch.setattr(watching, "start_time", lambda pid: 17)
    birth.add(Event.BORN, os.getpid())
    monkeypatch.undo()

    assert not birth.claim()


def test_a_claim_whose_start_is_not_known(monkeypatch):
    """A claim that was noted without a descriptor for the start time counts for the process."""
    births = [Birth.make(b"") for _ in range(2)]
    monkeypatch.setattr(watching, "start_time", lambda pid: None)
    births[0].add(Event.BORN, os.getpid())
    births[1].add(Event.BORN, os.getppid())
    monkeypatch.undo()

    assert [True, False] == [birth.claim() for birth in births]


def test_half_a_record_is_read_when_it_is_whole():
    """A reader that comes while a record is written sees those before it, and it the next time."""
    birth = Birth.make(b"abc")
    first, second = (birth.add(Event.ENDED, code=code) for code in range(2))
    os.ftruncate(birth.fileno(), birth.content_bytes + _RECORD.size + _RECORD.size // 2)

    assert [first] == birth.records()
    os.ftruncate(birth.fileno(), birth.content_bytes + _RECORD.size)
    os.write(birth.fileno(), _RECORD.pack(*second))
    assert [first, second] == birth.records()


def test_no_record_is_written_in_pieces():
    """The kernel appends page by page, so a record that crosses none is there whole or not."""
    assert 0 == mmap.PAGESIZE % _RECORD.size == Birth.make(b"abc").content_bytes % _RECORD.size


def test_a_birth_closes_when_its_module_is_gone(monkeypatch):
    """At the interpreter's end, when names of modules may be gone, a birth closes in silence."""
    kept = Birth.make(b"")
    descriptor = kept.fileno()
    for name in ("os", "fcntl", "watching", "Descriptor"):
        monkeypatch.setattr(birth_module, name, None)
    del kept

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
