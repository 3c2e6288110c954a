"""Subscribers of which the kernel asks more than of others: limits, locked memory, other pids."""

import contextlib
import ctypes
import os
import resource
import signal
import time

import pytest

import shmloader
from shmloader.memory import limits
from shmloader.publishing import inbox, meeting
from tests.publish.actors import NAME, epochs_of, loader_of, publishes, reads, reads_by_word

FEW_SLOTS = {"slots": 4}
CANNOT = "the kernel refuses it"
MCL_FUTURE = 2  # alone: what pytest has mapped until then may be gigabytes of holes
CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000
MS_PRIVATE_BELOW = 0x44000  # MS_REC | MS_PRIVATE
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def status(name):
    """Read a figure of this process's, in bytes."""
    with open("/proc/self/status") as lines:
        found = next(line for line in lines if line.startswith(f"{name}:"))
    return int(found.split()[1]) * 1024


@pytest.mark.thorough
def test_a_subscriber_under_a_limit_of_private_memory(play):
    """Neither the publisher's slots nor its own count for `ulimit -d`."""

    def limited(say, hear):
        most = status("VmData") + (64 << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))
        return reads(say, hear, epochs=2)

    publisher, reader = play(publishes), play(limited)

    assert epochs_of(loader_of(), 2) == reader.hear()
    assert publisher.hear() == "over"


@pytest.mark.thorough
def test_a_subscriber_that_locks_its_memory(play):
    """After mlockall() no slot that is not written becomes a page, neither here nor there."""

    def locked(say, hear):
        if LIBC.mlockall(MCL_FUTURE) != 0:
            return CANNOT
        say("locked")
        before = status("VmRSS")
        found = reads(say, hear, epochs=2)
        say(status("VmRSS") - before)
        return found

    reader = play(locked)
    if reader.hear() == CANNOT:
        pytest.skip("this user may not lock so much memory")
    publisher = play(publishes)

    assert reader.hear() < 256 << 20
    assert epochs_of(loader_of(), 2) == reader.hear()
    assert publisher.hear() == "over"


@pytest.mark.thorough
@pytest.mark.parametrize("returns", [True, False])
def test_a_subscriber_that_finds_no_memory(play, returns):
    """It gives back what waits for later batches and has patience, then says what it lacks."""

    def finds_none(say, hear):
        with shmloader.subscribe(NAME) as batches:
            iterator = iter(batches)
            kept = [next(iterator)]
            given_back = []
            inbox.policy.SHORTAGE_S = 10.0 if returns else 0.1
            inbox.policy.UNSEEN_S = 0.0  # a look for each batch
            limits.available = lambda: limits.Available(
                10**9 if given_back and returns else 32 << 20, "in a test"
            )
            budget = batches._inbox._transport.budget
            budget.make_room = lambda: given_back.append(True)
            kept += iterator
            return len(kept), given_back

    publisher, reader = play(publishes, options=FEW_SLOTS), play(finds_none)
    said, found = reader.hear()

    if returns:
        assert (12, [True]) == (said, found)
    else:
        assert "OutOfSharedMemory" == said
        assert "33.6 MB are left to process" in found and "33.6 MB of them in reserve" in found
    assert publisher.hear() == "over"


def apart(part):
    """Let an actor play its part in a child with pids of its own, whose pid here it says first."""

    def plays(say, hear, **arguments):
        if LIBC.unshare(CLONE_NEWNS | CLONE_NEWPID) != 0:
            return CANNOT
        child = os.fork()
        if child != 0:
            say(child)
            os.waitpid(child, 0)
            return "over there"
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        LIBC.mount(None, b"/", None, MS_PRIVATE_BELOW, None)
        LIBC.mount(b"proc", b"/proc", b"proc", 0, None)
        with contextlib.suppress(BaseException):
            said = part(say, hear, **arguments)
            say(said)
        os._exit(0)

    return plays


def apart_or_skip(actor):
    """Return the pid of an actor's child; skip the test if there can be none."""
    pid = actor.hear()
    if pid == CANNOT:
        pytest.skip("this user may not make a pid namespace")
    return pid


@pytest.mark.thorough
def test_a_subscriber_with_other_pids(play):
    """It gets the batches as any other; and if it dies, that is seen."""
    publisher = play(publishes, subscribers=3, options=FEW_SLOTS)
    reader, dies = play(apart(reads), epochs=2), play(apart(reads_by_word))
    apart_or_skip(reader)
    pid = apart_or_skip(dies)
    here = play(reads, epochs=2)
    dies.ask()
    os.kill(pid, signal.SIGKILL)

    own = epochs_of(loader_of(), 2)
    assert [own, own] == [reader.hear(), here.hear()]
    assert publisher.hear() == "over"


@pytest.mark.thorough
def test_a_publisher_with_other_pids(play):
    """Its batches come, and its death is told."""
    publisher = play(apart(publishes), options=FEW_SLOTS)
    pid = apart_or_skip(publisher)
    reader = play(reads_by_word)
    own = epochs_of(loader_of(), 1)
    assert own[0][0] == reader.ask()
    os.kill(pid, signal.SIGKILL)
    came = [reader.ask()]
    while isinstance(came[-1][0], list):
        came.append(reader.ask())

    kind, text = came.pop()
    assert ("RuntimeError", True) == (kind, "has died" in text)
    assert own[0][1 : 1 + len(came)] == came


@pytest.fixture
def no_pidfd(monkeypatch):
    """Play a kernel that tells of a peer no more than its pid, and that of a container."""
    monkeypatch.setattr(meeting, "_PIDFD_OF_PEER", 0x7FFF)
    monkeypatch.setattr(meeting, "_owner_of", lambda connection: (0, os.geteuid()))


def test_an_old_kernel_is_an_error_that_says_so(play, no_pidfd):
    """Where the death of a process with other pids could not be seen, both are told."""
    publisher = play(publishes)
    time.sleep(0.1)

    with pytest.raises(OSError, match="run both in one pid namespace"):
        shmloader.subscribe(NAME)
    publisher.end()


def test_a_publisher_that_cannot_see_a_subscriber_tells_it(play, monkeypatch):
    """It is refused with that reason, and does not wait."""
    with monkeypatch.context() as patched:
        patched.setattr(meeting, "_PIDFD_OF_PEER", 0x7FFF)
        patched.setattr(meeting, "_owner_of", lambda connection: (0, os.geteuid()))
        publisher = play(publishes)
    reader = play(reads)

    kind, text = reader.hear()
    assert ("RuntimeError", True) == (kind, "run both in one pid namespace" in text)
    publisher.end()
