"""Loops played by the model: against arithmetic, and against a scheduler written step by step."""

import random

import pytest

from bench.questions.stalls.bound import best_waits
from shmloader.advice.model import play


def slowly(making, steps, workers, depth, in_order, count, assignment="cycle"):
    """Play a loop in ticks of one second, as one would with pen and paper."""
    orders = [[] for _ in range(workers)]
    told, turn = [0] * workers, 0  # batches of each that were not returned
    ahead = min(workers * depth, count)

    def order(number):
        nonlocal turn
        who = [(turn + each) % workers for each in range(workers)]
        if assignment == "dynamic":
            who = sorted(range(workers), key=lambda each: len(orders[each]))
        who = [each for each in who if in_order or told[each] < depth]
        turn = who[0] + 1
        orders[who[0]].append(number)
        told[who[0]] += 1
        made_by[number] = who[0]

    made_by = {}
    for number in range(ahead):
        order(number)
    done, left = [], [0] * workers
    now, waits, free_at, asked_at, returned = 0, [], 0, 0, 0
    given = set()
    while returned < count:
        # A worker that has nothing in hand takes its next order.
        for worker in range(workers):
            if left[worker] == 0 and orders[worker]:
                left[worker] = making[orders[worker][0] % len(making)]
        if now >= free_at:
            ready = [number for number in done if number not in given]
            wanted = returned if in_order else (ready[0] if ready else None)
            if wanted in done:
                waits.append(now - asked_at)
                given.add(wanted)
                told[made_by[wanted]] -= 1
                if returned + ahead < count:
                    order(returned + ahead)
                free_at = asked_at = now + steps[returned % len(steps)]
                returned += 1
                continue
        now += 1
        finished = []
        for worker in range(workers):
            if left[worker] > 0:
                left[worker] -= 1
                if left[worker] == 0:
                    finished.append(orders[worker].pop(0))
        done += sorted(finished)
    return waits


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("assignment", ["cycle", "dynamic"])
@pytest.mark.parametrize("in_order", [True, False])
def test_model_is_the_scheduler(workers, depth, assignment, in_order):
    """The model waits exactly as a scheduler that goes second by second."""
    draw = random.Random(workers * 10 + depth)
    for _ in range(20):
        making = [draw.randint(1, 9) for _ in range(23)]
        steps = [draw.randint(1, 4) for _ in range(23)]

        options = {"in_order": in_order, "assignment": assignment}
        played = play(making, steps, workers, depth, **options)

        assert slowly(making, steps, workers, depth, count=23, **options) == list(played.waits_s)
        assert sum(played.waits_s) + sum(steps) == played.total_s


def test_the_bound_by_hand():
    """The bench's bound: the first free worker takes the next request."""
    making, steps = [5, 1, 1, 5, 1], [1] * 5

    assert [5, 0, 0, 3, 0] == best_waits(making, steps, 2, 2, in_order=True)
    assert [1, 0, 2, 0, 0] == best_waits(making, steps, 2, 2, in_order=False)
    assert [5, 0, 0, 0, 0] == best_waits(making, steps, 2, 5, in_order=True)


@pytest.mark.parametrize("depth", [2, 4, 8, 16])
def test_dynamic_assignment_is_near_the_bound(depth):
    """Behind the start of an epoch it takes 1 / 0.95 of the bound's time at most."""
    draw = random.Random(depth)
    making = [0.114 if draw.random() < 0.08 else 0.016 for _ in range(1000)]
    waits = best_waits(making, [0.008] * 1000, 4, 4 * depth, in_order=True)
    played = play(making, [0.008], 4, depth, assignment="dynamic").after(4 * depth)

    assert 0.95 < (sum(waits[4 * depth :]) + sum(played.steps_s)) / played.total_s < 1.001


def test_a_slow_worker_is_asked_less():
    """Dynamic assignment gives unequal workers what each can do; turns wait for the slowest."""
    options = {"batches": 800, "paces": [1, 1, 5]}
    turns, free = (
        play([1.0], [0.5], 3, 4, assignment=assignment, **options)
        for assignment in ("cycle", "dynamic")
    )

    assert turns.total_s > 1.5 * free.total_s
    assert free.workers.count(2) < 0.15 * 800
    assert abs(turns.workers.count(2) - 800 / 3) < 1


def test_slots_bound_what_is_ahead():
    """With few slots, few batches are on their way, whatever the workers could do."""
    few, many = (play([1.0], [0.1], 8, 2, slots=slots, batches=200) for slots in (3, 20))

    assert 2.0 == pytest.approx(200 / few.total_s, rel=0.05)
    assert few.total_s > 3 * many.total_s
