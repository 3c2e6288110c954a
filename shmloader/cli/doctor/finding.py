"""What a check finds."""

from typing import Literal, NamedTuple

Verdict = Literal["ok", "note", "problem"]


class Finding(NamedTuple):
    """What one check found; `shmloader doctor --help` says what the verdicts mean."""

    name: str  # what was looked at
    verdict: Verdict
    fact: str  # what was found, with numbers
    remedy: str = ""  # what to do about it, unless it is ok
