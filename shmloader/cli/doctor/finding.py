"""What a check finds."""

from typing import Literal, NamedTuple

Verdict = Literal["ok", "note", "problem"]


class Finding(NamedTuple):
    """
    What one check found.

    Attributes:
        name: What was looked at.
        verdict: "ok"; "note": it works, but costs something or surprises; "problem": loaders fail,
            or will at the usual sizes.
        fact: What was found, with numbers.
        remedy: What to do about it; "" if it is ok.
    """

    name: str
    verdict: Verdict
    fact: str
    remedy: str = ""
