"""Our DataLoader beside torch's under the same seeds: the same batches from the same workers."""

import pytest

from tests.torch.golden.describe import first_difference
from tests.torch.golden.outcomes import LOADERS
from tests.torch.golden.recorder import record

pytestmark = pytest.mark.timeout(120)


def record_both(case):
    return record(case, LOADERS["torch"]), record(case, LOADERS["ours"])


@pytest.mark.core(first=1)
def test_run_equals_torch(ordered_case):
    """Batches, lengths, warnings and the trainer's generators are torch's at every step."""
    difference = first_difference(*record_both(ordered_case))

    assert difference is None


# Out of order the next task goes to the worker that is done first, so chance also decides which
# worker makes a batch. Its content, and the draws of each worker's n-th sample, stay fixed.


def without_order(epochs):
    """Return the run with the batches of each epoch sorted and what depends on workers removed."""
    return [[*map(without_batch, epoch), *sorted(contents_of(epoch))] for epoch in epochs]


def without_batch(event):
    return {key: event[key] for key in event if key not in ("batch", "content", "stamps")}


def contents_of(epoch):
    contents = [repr(event["content"]) for event in epoch if "content" in event]
    # Which batches an epoch delivers that is broken off is chance as well; their number is not.
    return contents if any(event["event"] == "end" for event in epoch) else []


def stamps_of_run(epochs):
    """Return {(seed, nth): (worker, draws)} for every sample of a run."""
    stamps = [event["stamps"] for epoch in epochs for event in epoch if "stamps" in event]
    return {key: stamp for batch in stamps for key, stamp in batch.items()}


def common_stamps(expected, actual):
    """Return the stamps of both runs, of the samples that both made."""
    expected, actual = stamps_of_run(expected), stamps_of_run(actual)
    common = expected.keys() & actual.keys()
    return {key: expected[key] for key in common}, {key: actual[key] for key in common}


@pytest.mark.core(every=9)
def test_unordered_run_equals_torch(unordered_case):
    """Out of order, an epoch has torch's batches, and a worker's n-th sample torch's draws."""
    expected, actual = record_both(unordered_case)
    difference = first_difference(without_order(expected), without_order(actual))
    expected_stamps, actual_stamps = common_stamps(expected, actual)

    assert difference is None
    assert len(expected_stamps) > 0
    assert expected_stamps == actual_stamps
