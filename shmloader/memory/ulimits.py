"""The limits of this process that bound a segment's length: `ulimit -v` and `ulimit -f`."""

import mmap
import resource
from typing import NamedTuple

from shmloader.errors import if_allowed
from shmloader.memory import groups, policy


class Bound(NamedTuple):
    """How long a segment may be, and why not longer."""

    bytes: int
    reason: str


def segment_bound() -> Bound | None:
    """The tightest bound that a limit of this process sets; None if nothing is limited."""
    bounds = (_address_bound(), file_bound())
    return min((bound for bound in bounds if bound is not None), default=None)


def file_bound() -> Bound | None:
    """The bound that `ulimit -f` sets; None if it is not limited."""
    limit = _limit(resource.RLIMIT_FSIZE)
    return None if limit is None else Bound(limit, _reason("f", "a file", limit))


def _address_bound() -> Bound | None:
    limit = _limit(resource.RLIMIT_AS)
    if limit is None:
        return None
    left = max(0, limit - _mapped_bytes())
    return Bound(left // policy.ADDRESSES_PART, _reason("v", "addresses", limit))


def _mapped_bytes() -> int:
    """The addresses that this process uses, in bytes; 0 if the system does not say."""
    pages = groups.read_text(f"{groups.PROC}/self/statm").split()
    return int(pages[0]) * mmap.PAGESIZE if pages else 0


def _limit(which: int) -> int | None:
    limit = resource.RLIM_INFINITY
    with if_allowed():
        limit, _ = resource.getrlimit(which)
    return None if limit == resource.RLIM_INFINITY else limit


def _reason(option: str, what: str, limit: int) -> str:
    return f"`ulimit -{option}` limits {what} to {limit / 1e6:.1f} MB"
