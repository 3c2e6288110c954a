"""An error by which a process is out of something names the limit, with its numbers."""

import errno
import resource

import pytest

from shmloader.memory import limits, shortages


@pytest.mark.parametrize(
    ("number", "name", "what"),
    [
        (errno.EMFILE, "RLIMIT_NOFILE", "open files"),
        (errno.EAGAIN, "RLIMIT_NPROC", "processes and threads of its user"),
    ],
)
def test_a_limit_of_this_process_is_named(monkeypatch, number, name, what):
    """The text has the soft and the hard limit."""
    asked = []
    unlimited = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda each: asked.append(each) or (71, unlimited))

    words = f"{name} allows this process 71 {what} (hard limit unlimited)"
    assert shortages.describe(number).startswith(words)
    assert [getattr(resource, name)] == asked


@pytest.mark.parametrize(
    ("available", "words"),
    [
        (limits.Available(3_500_000, "on this machine"), "3.5 MB are left on this machine: free"),
        (None, "the kernel has no memory for it: free some"),
    ],
)
def test_memory_is_counted(monkeypatch, available, words):
    """The text has what is left, if the system says."""
    monkeypatch.setattr(limits, "available", lambda: available)

    assert words in shortages.describe(errno.ENOMEM)


def test_an_error_keeps_its_kind():
    """The error that is explained is the one that came, with the reason in its text."""
    text = "unavailable: RLIMIT_NPROC allows"
    with pytest.raises(BlockingIOError, match=text) as raised, shortages.explained():
        raise BlockingIOError(errno.EAGAIN, "no")

    assert errno.EAGAIN == raised.value.errno


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "no"), TimeoutError("late")])
def test_other_errors_are_left_alone(error):
    """An error that met no limit passes as it is."""
    with pytest.raises(type(error)) as raised, shortages.explained():
        raise error

    assert error is raised.value
