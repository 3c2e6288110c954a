"""Loops played by the model: against arithmetic, and against a scheduler written step by step."""

import random

import pytest

from shmloader.metrics.model import play


def slowly(making, steps, workers, depth, in_order, count):
    """Play a loop in ticks of one second, as one would with pen and paper."""
    orders = [[] for _ in range(workers)]
    ahead = min(workers * depth, count)
    for number in range(ahead):
        orders[number % workers].append(number)
    done, left = set(), [0] * workers
    now, waits, free_at, asked_at, returned = 0, [], 0, 0, 0
    given = set()
    while returned < count:
        # A worker that has nothing in hand takes its next order.
        for worker in range(workers):
            if left[worker] == 0 and orders[worker]:
                left[worker] = making[orders[worker][0] % len(making)]
        if now >= free_at:
            ready = sorted(done - given)
            wanted = returned if in_order else (ready[0] if ready else None)
            if wanted in done:
                waits.append(now - asked_at)
                given.add(wanted)
                if returned + ahead < count:
                    number = returned + ahead
                    orders[number % workers].append(number)
                free_at = asked_at = now + steps[returned % len(steps)]
                returned += 1
                continue
        now += 1
        for worker in range(workers):
            if left[worker] > 0:
                left[worker] -= 1
                if left[worker] == 0:
                    done.add(orders[worker].pop(0))
    return waits


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_model_is_the_scheduler(workers, depth):
    """In order, the model waits exactly as a scheduler that goes second by second."""
    draw = random.Random(workers * 10 + depth)
    for _ in range(20):
        making = [draw.randint(1, 9) for _ in range(23)]
        steps = [draw.randint(1, 4) for _ in range(23)]

        played = play(making, steps, workers, depth)

        assert slowly(making, steps, workers, depth, True, 23) == list(played.waits_s)
        assert sum(played.waits_s) + sum(steps) == played.total_s


def test_enough_workers_hide_the_fetching():
    """n workers hide a fetch of n steps."""
    shares = [play([1.0], [0.25], n, 2, batches=400).wait_share for n in (1, 2, 3, 4, 5)]

    assert [0.75, 0.5, 0.25, 0.0, 0.0] == pytest.approx(shares, abs=0.01)


def test_equal_workers_wait_at_every_nth_step():
    """Equal workers that started together are ready together: every n-th step waits."""
    waits = play([1.0], [0.2], 4, 2, batches=40).waits_s

    assert {0} == {number % 4 for number, wait in enumerate(waits) if wait > 1e-9}


def test_depth_hides_single_slow_batches():
    """A slow batch is waited for unless so many others are ahead of it."""
    making = [0.1] * 99 + [2.0]
    shares = [play(making, [0.1], 2, depth, batches=500).wait_share for depth in (2, 8, 16)]

    assert shares[0] > shares[1] > shares[2]
    assert shares[2] < 0.05


def test_out_of_order_waits_less():
    """Out of order a slow batch holds back its own worker alone."""
    making = [0.1] * 19 + [2.0]
    ordered, free = (
        play(making, [0.1], 4, 2, in_order=in_order, batches=400) for in_order in (True, False)
    )

    assert free.wait_share < 0.5 * ordered.wait_share


def test_slots_bound_what_is_ahead():
    """With few slots, few batches are on their way, whatever the workers could do."""
    few, many = (play([1.0], [0.1], 8, 2, slots=slots, batches=200) for slots in (3, 20))

    assert 2.0 == pytest.approx(200 / few.total_s, rel=0.05)
    assert few.total_s > 3 * many.total_s


def test_times_come_again():
    """More batches than times: the times are used again, from the start."""
    assert play([1, 2, 3], [1], 1, 2, batches=9).total_s == play([1, 2, 3] * 3, [1], 1, 2).total_s
