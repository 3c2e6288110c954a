"""Our DataLoader beside torch's under the same seeds: the same batches from the same workers."""

import pytest

from tests.torch.golden.contenders import LOADERS
from tests.torch.golden.describe import first_difference
from tests.torch.golden.recorder import record
from tests.torch.golden.unordered import common_stamps, without_order

pytestmark = pytest.mark.timeout(120)


def record_both(case):
    return record(case, LOADERS["torch"]), record(case, LOADERS["ours"])


@pytest.mark.core(first=1)
def test_run_equals_torch(ordered_case):
    """Batches, lengths, warnings and the trainer's generators are torch's at every step."""
    difference = first_difference(*record_both(ordered_case))

    assert difference is None


@pytest.mark.core(every=9)
def test_unordered_run_equals_torch(unordered_case):
    """Out of order, an epoch has torch's batches, and a worker's n-th sample torch's draws."""
    expected, actual = record_both(unordered_case)
    difference = first_difference(without_order(expected), without_order(actual))
    expected_stamps, actual_stamps = common_stamps(expected, actual)

    assert difference is None
    assert len(expected_stamps) > 0
    assert expected_stamps == actual_stamps
