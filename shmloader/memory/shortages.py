"""What this process is out of when a system call fails: descriptors, processes or memory."""

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

from shmloader.memory import limits


def describe(number: int | None) -> str | None:
    """Say which limit a failed call met, by its errno, and what to do; None if it met none."""
    if number == errno.EMFILE:
        allowed = _allowed("RLIMIT_NOFILE", "open files")
        return f"{allowed}: close some, or raise the limit with `ulimit -n`"
    if number == errno.ENFILE:
        return "the machine has no open file left: close some, or raise fs.file-max"
    if number == errno.EAGAIN:
        allowed = _allowed("RLIMIT_NPROC", "processes and threads of its user")
        return (
            f"{allowed}, and its control groups' pids.max may allow fewer: end some, or raise "
            "these limits"
        )
    if number == errno.ENOMEM:
        left = limits.available()
        known = (
            "" if left is None else f", of which {left.bytes / 1e6:.1f} MB are left {left.where}"
        )
        return f"the kernel has no memory for it{known}: free some"
    return None


def _allowed(name: str, what: str) -> str:
    bounds = resource.getrlimit(getattr(resource, name))
    soft, hard = ("unlimited" if each == resource.RLIM_INFINITY else each for each in bounds)
    return f"{name} allows this process {soft} {what} (hard limit {hard})"


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Have an error by which this process is out of something say so, with the numbers."""
    try:
        yield
    except OSError as error:
        number = error.errno
        reason = describe(number)
        if number is None or reason is None:
            raise
        raise OSError(number, f"{os.strerror(number)}: {reason}") from error
