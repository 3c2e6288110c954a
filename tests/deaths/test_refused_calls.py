"""
System calls that are refused, as sandboxes do: what is optional is not missed; the rest is named.

Each case is a program under a filter of its own; `helpers/uses.py` has what it does.
"""

import errno
import itertools
import json
import re

import pytest

from tests.helpers.refusing import Refused, can_refuse
from tests.helpers.stage import Play, staged

pytestmark = pytest.mark.skipif(not can_refuse(), reason="no filter of system calls can be set")

HEAD = """
import os
import torch
from tests.helpers import uses
from tests.helpers.refusing import Refused, refuse

torch.set_num_threads(1)
"""

# "cache" has the two epochs of "plain", and more.
USES = ["healing", "death", "held", "forked", "cache", "shared_list", "downloads", "nice"]
ERRORS = ["EPERM", "ENOSYS"]

# By name: the call, and what of it is refused; None: every one.
OPTIONAL = {
    "madvise(MADV_DONTDUMP)": ("madvise", (2, 16)),
    "fcntl(F_ADD_SEALS)": ("fcntl", (1, 1033)),
    "futex(FUTEX_WAKE)": ("futex", (1, 1)),
    "futex(FUTEX_WAIT)": ("futex", (1, 0)),
    "fchmod": ("fchmod", None),
    "sched_getaffinity": ("sched_getaffinity", None),
    "prlimit64": ("prlimit64", None),
    "memfd_create": ("memfd_create", None),
    "fallocate": ("fallocate", None),
    "writev": ("writev", None),
}
BY_HEALING = ["socketpair", "sendmsg", "recvmsg", "pread64", "wait4"]
NEEDED = [
    *[("healing", call) for call in BY_HEALING],
    *[("downloads", "flock"), ("plain", "ftruncate"), ("cache", "ftruncate")],
]
# All that a traced run makes, but for what is above and what nothing runs without.
NAMES = """
access clock_gettime clock_nanosleep close_range dup epoll_create1 fstat getdents64 getppid
getpriority getrandom getrusage getsockname getsockopt gettid ioctl madvise mbind mprotect mremap
pidfd_open prctl pwrite64 recvfrom rename readlink rt_sigsuspend sched_setaffinity sched_yield
sendto set_robust_list set_tid_address setpriority shutdown statx sysinfo tgkill timer_create uname
unlink utimensat waitid
"""
OTHERS = NAMES.split()
# Without these no process is started, here as in torch.
BASIC = ["clone", "fcntl", "newfstatat", "pipe2", "rt_sigaction", "rt_sigprocmask"]


stage = staged(HEAD)


@pytest.fixture
def outcome(stage, tmp_path):
    """Runs a use while system calls are refused, and returns what came of it, as `uses.play`."""

    def play(use, *refused):
        script = f"os.chdir({str(tmp_path)!r})\nrefuse(*{refused})\nuses.play(uses.{use})\n"
        with Play(stage, tmp_path, script) as program:
            found = json.loads(program.line())
            assert 0 == program.wait()
            assert "" == program.errors
        return found

    return play


def optional(name, error):
    call, argument = OPTIONAL[name]
    return Refused(call, error, *argument or ())


@pytest.mark.core(first=1)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", OPTIONAL)
def test_optional_calls_are_not_missed(outcome, name, use):
    """Every use is right without a call that is only a hint, a guard, or has a substitute."""
    assert [] == outcome(use, optional(name, "EPERM"))


@pytest.mark.thorough
@pytest.mark.parametrize("use", ["plain", "healing"])
@pytest.mark.parametrize("name", OPTIONAL)
def test_calls_that_the_kernel_does_not_have(outcome, name, use):
    """The same if the error is that of a kernel which does not know the call."""
    assert [] == outcome(use, optional(name, "ENOSYS"))


@pytest.mark.thorough
@pytest.mark.parametrize("use", ["plain", "healing"])
def test_all_optional_calls_at_once(outcome, use):
    """Nothing is missed without any of them either."""
    assert [] == outcome(use, *(optional(name, "EPERM") for name in OPTIONAL))


@pytest.mark.core(first=1)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("use", "call"), NEEDED)
def test_needed_calls_end_in_one_error(outcome, use, call, error):
    """A call that is needed is an error in the trainer that names call, process and errno."""
    kind, text = outcome(use, Refused(call, error))

    assert type(OSError(getattr(errno, error), "")).__name__ == kind
    assert re.search(rf"process \d+ may not make the system call {call} \({error}: ", text), text


@pytest.mark.thorough
@pytest.mark.parametrize("use", ["plain", "healing"])
def test_worker_that_gets_no_thread(stage, tmp_path, use):
    """A worker that cannot watch its trainer fetches nothing, says why, and ends."""
    script = f"os.chdir({str(tmp_path)!r})\nrefuse({Refused('clone3', 'EPERM')})\n"
    with Play(stage, tmp_path, f"{script}uses.play(uses.{use})\n") as program:
        kind, _ = json.loads(program.line())
        assert (0, "RuntimeError") == (program.wait(), kind)
        assert re.search(
            r"PermissionError: .*process \d+ cannot start the thread that watches process \d+, "
            r"because the system call clone3 or clone fails \(EPERM: ",
            program.errors,
        ), program.errors


def test_older_call_serves_instead(outcome):
    """Where the kernel does not know clone3, the C library takes clone."""
    assert [] == outcome("healing", Refused("clone3", "ENOSYS"))


@pytest.mark.thorough
@pytest.mark.parametrize(("call", "error"), [*zip(OTHERS, itertools.cycle(ERRORS))])
def test_other_calls_are_not_missed(outcome, call, error):
    """A run that heals needs no other call: each is refused once, with one of the errors."""
    assert [] == outcome("healing", Refused(call, error))


@pytest.mark.thorough
@pytest.mark.parametrize(("use", "error"), [("plain", "EPERM"), ("healing", "ENOSYS")])
@pytest.mark.parametrize("call", BASIC)
def test_basic_calls_are_an_error(outcome, call, use, error):
    """What no process is started without is an error of the kernel's, in the trainer alone."""
    kind, _ = outcome(use, Refused(call, error))

    assert type(OSError(getattr(errno, error), "")).__name__ == kind


@pytest.mark.core(first=1)
@pytest.mark.parametrize(("operation", "parks_by"), [(0, "sleep"), (1, "sleep"), (9, "futex")])
def test_parking_without_futexes(stage, tmp_path, operation, parks_by):
    """If the kernel refuses to wait or to wake, processes look again by the clock."""
    script = f"""
from shmloader import core
refuse(Refused("futex", "EPERM", 1, {operation}))
print(core.parking())
"""
    with Play(stage, tmp_path, script) as program:
        assert parks_by == program.line()
        assert 0 == program.wait()
