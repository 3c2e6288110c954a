"""The numbers that decide what stays: C has the same ones as Python."""

import re
from pathlib import Path

import pytest

from shmloader.memory import policy

ROOT = Path(__file__).resolve().parents[2]
FIELDS = re.findall(r"^  uint64_t (\w+);", (ROOT / "csrc/policy.h").read_text(), re.MULTILINE)


def test_the_core_takes_numbers_from_here():
    """Each field of C's struct has the number of its name, and none is zero."""
    assert {field: getattr(policy, field.upper()) for field in FIELDS} == of_core()
    assert all(value > 0 for value in of_core().values())


def of_core():
    return {field: policy.OF_CORE[field] for field in FIELDS}


@pytest.mark.parametrize(("slots", "scarce"), [(4, 0), (5, 0), (6, 4), (9, 4)])
def test_few_slots_are_never_scarce(slots, scarce):
    """Of those that may be leased the last two are scarce, if there are twice as many."""
    assert scarce == policy.scarce_slots(slots, reserved=2)


def test_sizes_that_are_judged_find_room():
    """C has room for as many sizes as are judged."""
    room = re.search(r"#define DEMAND_SIZES (\d+)", (ROOT / "csrc/demand.h").read_text())

    assert policy.JUDGED_BATCHES <= int(room[1])


def test_the_tests_of_c_have_the_same_numbers():
    """The C programs run without Python, by a copy that is equal."""
    text = (ROOT / "tests/protocol/c/policy_of_tests.h").read_text()
    found = {}
    for name, value in re.findall(r"^    \.(\w+) = (.*),$", text, re.MULTILINE):
        number, _, shift = re.sub(r"UINT64_C\((\d+)\)", r"\1", value).partition(" << ")
        found[name] = int(number) << int(shift or 0)

    assert of_core() == found
