"""Which depth hides which slow batches, as the model of our loop has it, and what it costs."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from bench.question import Options
from shmloader.advice.model import play
from shmloader.stats.setting import CYCLE, DYNAMIC
from shmloader.stats.words import percent

_WORKERS = 4
_USUAL = 2.0  # steps that a worker takes for a batch that is not slow
_BATCHES, _FIRST = 4000, 256
_WAITS = 0.01  # of the time, at most
_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_SPARE = 6  # slots for batches in use, the default
_BATCH_GB = 0.0385  # 64 x (3, 224, 224) float32
_BUSY = 0.9  # workers that are busier have other cares

_WAYS: dict[str, dict[str, object]] = {
    CYCLE: {},
    DYNAMIC: {"assignment": DYNAMIC},
    "in_order=False": {"in_order": False},
}


@dataclass(frozen=True)
class _Load:
    """Slow batches: how many steps each takes, and one in how many is one."""

    slow: int
    one_in: int

    @property
    def busy(self) -> float:
        """The part of their time that the workers must work."""
        return (_USUAL + (self.slow - _USUAL) / self.one_in) / _WORKERS

    def making(self) -> list[float]:
        """Steps that each batch takes a worker."""
        draw = random.Random(15)
        return [self.slow if draw.random() * self.one_in < 1 else _USUAL for _ in range(_BATCHES)]


def depths(_: Options) -> Iterator[dict[str, str]]:
    """Yield for slow batches of several lengths the least prefetch_factor that hides them."""
    loads = [_Load(slow, one_in) for slow in (5, 10, 20, 40, 80) for one_in in (100, 25, 10)]
    for load in (each for each in loads if each.busy < _BUSY):
        least = {way: _least_depth(load, options) for way, options in _WAYS.items()}
        yield {
            "a slow batch takes, steps": str(load.slow),
            "one in": str(load.one_in),
            "workers busy": percent(load.busy),
            **{way: str(depth or "none") for way, depth in least.items()},
            **{f"slots, GB with {way}": _memory(depth) for way, depth in least.items()},
        }


def _least_depth(load: _Load, options: dict[str, object]) -> int | None:
    """Find the least depth at which a loop whose step is 1 hardly waits."""
    making = load.making()
    for depth in _DEPTHS:
        played = play(making, [1.0], _WORKERS, depth, **options)
        if played.after(_FIRST).wait_share <= _WAITS:
            return depth
    return None


def _memory(depth: int | None) -> str:
    if depth is None:
        return "-"
    slots = depth * _WORKERS + _SPARE
    return f"{slots}, {slots * _BATCH_GB:.2g}"
