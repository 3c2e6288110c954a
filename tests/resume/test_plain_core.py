"""What the core has for a loader without workers is the same in Python, to the bit."""

import random

import numpy
import pytest
import torch

from shmloader import core
from shmloader.core import plain

REQUESTS = {
    "ints": [3, 1, 2],
    "one": 7,
    "negative": [-1, -(1 << 63)],
    "too large": [1 << 63],
    "none": [],
    "names": ["a", "b"],
    "pairs": [(1, 2), (3, 4)],
    "numpy": [numpy.int64(3)],
    "no value": [object()],
    "text": "abc",
    "bool": [True, 1],
}


DEEDS = ["hand out", "leave out", "lose"]  # with a batch that is in hand


def told(delivered):
    """List all that a record of deliveries tells."""
    names = "count low high last_worker by_worker snapshots sampler sampler_at checksum"
    return [*(getattr(delivered, name) for name in names.split()), delivered.missing()]


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_checksums_are_equal(request_):
    """A request of any kind has the same checksum, drawn or drawn again."""
    found = []
    for kind in (core, plain):
        delivered = kind.Delivered(1, True)
        delivered.draw(0, request_)
        delivered.take(0, 0).hand_out()
        replayed = kind.replay(iter([request_]), 0, 1, set(), [])
        found.append((told(delivered), replayed))

    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("is_numbered", [True, False])
def test_any_deliveries_are_told_alike(seed, is_numbered):
    """Whatever is drawn, delivered, lost and looked back at, both records say the same."""
    choose = random.Random(seed)
    base = choose.randrange(6)
    gaps = sorted(choose.sample(range(base), choose.randrange(base + 1)))
    workers = choose.randrange(3)
    both = [kind.Delivered(workers, is_numbered, gaps, base) for kind in (core, plain)]
    drawn, waiting = 0, []
    for _ in range(60):
        deed = choose.choice(["draw", "draw", *DEEDS, "hand out", "trust", "start"])
        number = choose.randrange(1 << 40)
        if deed == "draw":
            index = [choose.randrange(1000) for _ in range(choose.randrange(5))]
            state = choose.choice([None, b"state %d" % number])
            for each in both:
                each.draw(drawn, index, state)
            waiting.append(drawn)
            drawn += 1
        elif deed in DEEDS and waiting:
            task = waiting.pop(choose.randrange(len(waiting)) if choose.random() < 0.3 else 0)
            worker, snapshot = choose.randrange(max(workers, 1)), choose.choice([None, b"snapshot"])
            for each in both:
                hand = each.take(task, worker, snapshot)
                if deed == "hand out":
                    hand.batch = number
                    assert number == hand.hand_out()
                elif deed == "leave out":
                    hand.leave_out()
        elif deed == "trust" and choose.random() < 0.2:
            for each in both:
                each.trust(number)
        elif deed == "start" and choose.random() < 0.2:
            for each in both:
                each.start(b"start", number)
        one, other = both

        assert told(one) == told(other)
        assert told(one.before()) == told(other.before())
        assert one.number_of(drawn) == other.number_of(drawn)


@pytest.mark.parametrize("missing", [set(), {0}, {3, 4, 11}])
@pytest.mark.parametrize("high", [0, 5, 5000])
def test_requests_are_replayed_alike(high, missing):
    """The same are counted, and the same are kept; an end before that is the same too."""
    found = []
    for kind in (core, plain):
        kept = []
        requests = ([number, number + 1] for number in range(10_000))
        found.append((kind.replay(requests, 0, high, missing, kept), kept))
        with pytest.raises(StopIteration):
            kind.replay(iter([]), 0, 1, missing, [])

    assert found[0] == found[1]


def test_samples_are_counted():
    """Both give each index and count how many were taken."""
    for kind in (core, plain):
        samples = kind.Samples([5, 6, 7])

        assert 3 == len(samples)
        assert [(5, 1), (6, 2), (7, 3)] == [(index, samples.position) for index in samples]


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(3),
        torch.ones(3, 4)[:, 1],
        torch.ones(3, requires_grad=True),
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.ones(3).to_sparse(),
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(3, device="meta"),
        3,
        None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_tensors_are_known(value):
    """Both take the same tensors for plain ones."""
    assert core.is_plain(value) == plain.is_plain(value)
