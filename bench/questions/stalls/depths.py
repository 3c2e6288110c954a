"""Which depth hides which slow batches, as the model of our loop has it."""

import itertools
import random
from collections.abc import Iterator

from bench.question import Options
from shmloader.advice.model import play
from shmloader.stats.setting import CYCLE, DYNAMIC
from shmloader.stats.words import percent

_WORKERS = 4
_USUAL = 2.0  # steps that a worker takes for a batch that is not slow
_BATCHES, _FIRST = 4000, 256
_WAITS = 0.01  # of the time, at most
_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_BUSY = 0.9  # workers that are busier have other cares

_WAYS: dict[str, dict[str, object]] = {
    CYCLE: {},
    DYNAMIC: {"assignment": DYNAMIC},
    "in_order=False": {"in_order": False},
}


def depths(_: Options) -> Iterator[dict[str, str]]:
    """Yield for slow batches of several lengths the least prefetch_factor that hides them."""
    for slow, one_in in itertools.product((5, 10, 20, 40, 80), (100, 25, 10)):
        busy = (_USUAL + (slow - _USUAL) / one_in) / _WORKERS  # the part of the workers' time
        if busy < _BUSY:
            draw = random.Random(15)
            making = [slow if draw.random() * one_in < 1 else _USUAL for _ in range(_BATCHES)]
            yield {
                "a slow batch takes, steps": str(slow),
                "one in": str(one_in),
                "workers busy": percent(busy),
                **{way: _least_depth(making, options) for way, options in _WAYS.items()},
            }


def _least_depth(making: list[float], options: dict[str, object]) -> str:
    """Find the least depth at which a loop whose step is 1 hardly waits; making: of each batch."""
    for depth in _DEPTHS:
        played = play(making, [1.0], _WORKERS, depth, **options)
        if played.after(_FIRST).wait_share <= _WAITS:
            return str(depth)
    return "none"
