"""The numbers that decide what stays: C has the same ones as Python."""

import re
from pathlib import Path

import pytest

from shmloader.memory import policy

ROOT = Path(__file__).resolve().parents[2]


def test_the_core_has_the_same_numbers():
    """Each number that C uses is that of its name, and none is zero."""
    text = (ROOT / "csrc/policy.h").read_text()
    found = {}
    for name, value in re.findall(r"^#define POLICY_(\w+) (.*)$", text, re.MULTILINE):
        number, shift = re.fullmatch(r"\(?UINT64_C\((\d+)\)(?: << (\d+)\))?", value).groups()
        found[name] = int(number) << int(shift or 0)

    assert {name: getattr(policy, name) for name in found} == found
    assert all(value > 0 for value in found.values())


@pytest.mark.parametrize(("slots", "scarce"), [(4, 0), (5, 0), (6, 4), (9, 4)])
def test_few_slots_are_never_scarce(slots, scarce):
    """Of those that may be leased the last two are scarce, if there are twice as many."""
    assert scarce == policy.scarce_slots(slots, reserved=2)
