"""A short soak, and checks that the soak would notice wrong batches."""

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from examples.demo.moving import digest_batch
from tests.deaths.soak.delivery import Mistake, compare, digests
from tests.deaths.soak.phases import PHASES, Phase

ROOT = Path(__file__).resolve().parents[2]
SHORT_FORM = ["--batches", "300", "--period", "0.1", "--kills", "20"]
LONGEST_S = 240  # on a machine that is busy with other things


@pytest.mark.thorough
@pytest.mark.timeout(LONGEST_S + 60)
def test_batches_are_right_and_nothing_grows_while_workers_die():
    """Every phase delivers the right batches, heals, and holds no more at its end."""
    command = [sys.executable, "-m", "tests.deaths.soak", *SHORT_FORM]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S)
    assert ended.stdout, ended.stderr
    record = json.loads(ended.stdout)

    assert [] == record["mistakes"]
    assert 0 == ended.returncode
    assert [phase.name for phase in PHASES] == [each["phase"] for each in record["phases"]]
    assert 300 == record["batches"]
    assert all(each["restarts"] > 0 for each in record["phases"])
    assert record["nurseries"] > 0


class Epochs:
    """A loader without workers: the same batches in every epoch."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def numbered(count):
    """Make batches, each of which is its number."""
    return [torch.tensor(number) for number in range(count)]


def test_first_batch_that_differs_is_named():
    """A hash that is not the expected one ends the comparison and says which batch it was."""
    compare(["a", "b"], iter(["a", "b"]))
    with pytest.raises(Mistake, match="batch 1 differs"):
        compare(["a", "b", "c"], iter(["a", "x", "y"]))


def test_batch_that_changes_while_it_is_kept_is_named():
    """A batch in the window is hashed again when it leaves, and must be what it was."""
    batches = numbered(4)
    found = digests(Phase("kept", 1, torch.utils.data.Dataset, window=2), Epochs(batches), 4)
    next(found), next(found)
    batches[1] += 1

    with pytest.raises(Mistake, match="batch 1 changed while it was kept"):
        list(found)


@pytest.mark.parametrize(
    "other",
    [
        numpy.arange(5000.0),
        numpy.arange(5000, dtype=numpy.float32),
        numpy.arange(5000.0).reshape(50, 100),
        torch.arange(5000, dtype=torch.float64),
    ],
    ids=["value", "dtype", "shape", "type"],
)
def test_arrays_are_hashed_to_the_last_bit(other):
    """Two batches that differ in one bit of an array, or in its dtype or shape, differ in hash."""
    array = numpy.arange(5000.0)
    array[2500] = numpy.nextafter(array[2500], numpy.inf)

    assert digest_batch([array]) == digest_batch([array.copy()])
    assert digest_batch([array]) != digest_batch([other])
