"""How many workers the controller wants: by a table of windows, and by loads that take no time."""

import itertools
import random
from dataclasses import replace

import pytest

from shmloader.autoscaling.controller import CALM, Controller, Limits, Window
from tests.autoscaling.loads import Load, play

WINDOWS = 12  # within which the right number is found
WITHIN = 0.9  # of the best rate


def window(workers, waits=0.0, busy=1.0, rate=10.0, computes=0.0, seconds=2.0):
    """A window by its parts: the trainer's waits, how busy workers were, batches in a second."""
    busy_s = busy * workers * seconds
    made = round(rate * seconds)
    return Window(seconds, waits * seconds, made, made, busy_s, computes * busy_s, workers=workers)


FREE = Limits(least=1, most=32, cores=64)


def seen_for(windows, load, controller, now, chance, **changed):
    """Play windows of a load of which some numbers are others; return those of workers."""
    numbers = [now]
    for _ in range(windows):
        seen = replace(load.window(numbers[-1], chance), **changed)
        numbers.append(controller.decide(seen, FREE))
    return numbers


@pytest.mark.parametrize(
    ("seen", "limits", "wanted"),
    [
        (window(2, waits=0.9), FREE, 4),  # at most twice as many
        (window(8, waits=0.2), FREE, 13),  # as many as the step needs, and some to spare
        (window(2, waits=0.9, busy=0.4), FREE, 2),  # it waits for something else
        (window(2, waits=0.9), replace(FREE, most=3), 3),
        (window(2, waits=0.9), replace(FREE, memory=2), 2),
        (window(8, waits=0.9), replace(FREE, memory=3), 3),  # memory is short now
        (window(2, waits=0.9, computes=1.0), replace(FREE, cores=2), 2),
        (window(2, waits=0.9, computes=0.5), replace(FREE, cores=2), 4),
        (window(1, waits=0.9), replace(FREE, least=4), 4),
        (window(8, busy=0.1), FREE, 8),  # for one window alone
    ],
)
def test_one_window(seen, limits, wanted):
    """What follows from one window, where nothing was learnt yet."""
    assert wanted == Controller().decide(seen, limits)


def test_fewer_after_some_calm_windows():
    """Workers that have little to do are let go after some windows, all at once."""
    controller = Controller()
    found = [controller.decide(window(8, busy=0.2), FREE) for _ in range(CALM)]
    assert [8] * (CALM - 1) + [2] == found


@pytest.mark.parametrize(
    ("first", "waits", "rate"),
    [(window(4, waits=0.5), 0.5, 10.0), (window(8, busy=0.2), 0.4, 6.0)],
)
def test_what_does_not_pay_is_undone(first, waits, rate):
    """More workers that make no more, or fewer that are too few, are taken back at once."""
    controller, now = Controller(), first.workers
    while now == first.workers:
        now = controller.decide(first, FREE)
    assert first.workers == controller.decide(window(now, waits=waits, rate=rate), FREE)


def test_what_was_undone_is_tried_ever_more_rarely():
    """A step that is undone is not tried again for a while, and each time for twice as long."""
    load = Load(waits_s=0.0, computes_s=0.1, step_s=0.001, cores=4)
    unbound = {"computed_s": 0.0}  # by cores
    numbers = seen_for(400, load, Controller(), 4, random.Random(0), **unbound)
    tried = [at for at in range(400) if numbers[at + 1] > numbers[at]]
    gaps = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert len(gaps) >= 3
    assert sorted(gaps) == gaps
    assert gaps[-1] >= 4 * gaps[0]


def test_windows_that_differ_again_and_again_are_noise():
    """Where rates double and halve for ever, changes come ever more rarely all the same."""
    controller, numbers = Controller(), [2]
    two_cores = replace(FREE, cores=2, most=8)
    for rate in [10.0, 10.0, 20.0, 20.0] * 50:
        seen = window(numbers[-1], waits=0.9, rate=rate, computes=0.6)
        numbers.append(controller.decide(seen, two_cores))
    changes = [at for at in range(200) if numbers[at + 1] != numbers[at]]
    assert len(changes) > 1
    assert changes[-1] < 100


LOADS = {
    "samples wait": Load(0.64, 0.002, 0.001),
    "samples compute": Load(0, 0.05, 0.0001),
    "half and half": Load(0.05, 0.05, 0.001),
    "the step hides them": Load(0.02, 0.001, 0.1),
    "the step wants two cores": Load(0, 0.02, 0.03, step_cores=2),
    "many cores": Load(0, 0.3, 0.02, cores=16),
    "a stranger": Load(0, 0.3, 0.02, cores=16, strangers=8),
}


@pytest.mark.parametrize("first", [1, 2, 8, 32])
@pytest.mark.parametrize("name", LOADS)
def test_finds_the_right_number(name, first):
    """Within a tenth of the best rate after some windows, and it stays there."""
    load = LOADS[name]
    numbers = play(Controller(), load, 60, first)
    _, best = load.best(1, 32)
    assert min(load.at(number)[0] for number in numbers[WINDOWS:]) >= WITHIN * best
    assert 1 == len(set(numbers[-20:]))


def test_workers_are_let_go_where_the_step_hides_all():
    """No more are left than keep the trainer from waiting."""
    assert 1 == play(Controller(), LOADS["the step hides them"], WINDOWS, 32)[-1]


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("samples wait", {"waits_s": 2.56}),
        ("many cores", {"computes_s": 1.2}),
        ("the step hides them", {"step_s": 0.01}),
        ("many cores", {"strangers": 8}),
    ],
)
def test_a_load_that_changes(name, changed):
    """Where samples or the step take another time, the right number is found again."""
    controller, load = Controller(), LOADS[name]
    settled = play(controller, load, 40, 2)[-1]
    load = replace(load, **changed)
    numbers = play(controller, load, 40, settled)
    _, best = load.best(1, 32)
    assert min(load.at(number)[0] for number in numbers[WINDOWS:]) >= WITHIN * best


def random_load(chance):
    """Any load: of waits or computing, on few cores or many, in a noisy place."""
    batch_s = 10 ** chance.uniform(-3, 0.5)
    waits = chance.choice([0.0, 0.5, 0.9, 1.0, chance.random()])
    cores = chance.choice([1, 2, 4, 8, 16, 64])
    return Load(
        waits_s=batch_s * waits,
        computes_s=batch_s * (1 - waits) + 1e-5,
        step_s=10 ** chance.uniform(-4, 0),
        cores=cores,
        step_cores=chance.choice([0.1, 1, min(2, cores)]),
        strangers=chance.choice([0, 0, cores / 4]),
        noise=chance.choice([0, 0.02, 0.1]),
    )


@pytest.mark.thorough
def test_a_thousand_loads(request):
    """Never oscillates: few changes in all, ever fewer; and the rate is right in nearly all."""
    chance = random.Random(request.config.option.seed)
    good = 0
    for _ in range(1000):
        load, first = random_load(chance), chance.choice([1, 2, 8, 32])
        numbers = play(Controller(), load, 100, first, seed=chance.randrange(1 << 30))
        late = sum(numbers[at] != numbers[at + 1] for at in range(50, 100))
        assert late <= 8, (load, first, numbers)
        # More processes than cores would take a stranger's part of the time, too.
        least = WITHIN if load.strangers == 0 else 0.75
        good += load.at(numbers[-1])[0] >= least * load.best(1, 32)[1]
    assert good >= 970
