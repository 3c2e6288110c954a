"""The loads: how each is made, and the cause that is right for it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.questions.verdicts.parts import Batched, Collate, Cost, Draws, Samples, Stream

_SIZE = 4  # samples of a batch


@dataclass(frozen=True)
class Load:
    """
    A loop of known cause.

    Attributes:
        name: What it is.
        cause: The right answer of `report().cause`; several if each is right.
        options: The loader's, without what `dataset` and `collate` say.
        dataset: Makes the dataset of so many samples.
        step_s: Seconds of the step; burns: of processor time.
        keeps: How many batches the loop holds.
        batches: Of an epoch.
    """

    name: str
    cause: tuple[str, ...]
    dataset: Callable[[int], Any]
    options: dict[str, Any] = field(default_factory=dict)
    step_s: float = 0.005
    burns: bool = False
    keeps: int = 1
    batches: int = 120
    size: int = _SIZE


def _sleepy(seconds: float, **more: Any) -> Callable[[int], Any]:
    return lambda count: Samples(Cost(sleep_s=seconds, **more), count)


def _busy(seconds: float, **more: Any) -> Callable[[int], Any]:
    return lambda count: Samples(Cost(burn_s=seconds, **more), count)


def _of(kind: type, **cost: Any) -> Callable[[int], Any]:
    return lambda count: kind(Cost(**cost), count)


def _wide(width: int, **cost: Any) -> Callable[[int], Any]:
    return lambda count: Samples(Cost(**cost), count, width)


def _workers(count: int, **more: Any) -> dict[str, Any]:
    return {"num_workers": count, **more}


FREE = _sleepy(0.0)
MB = 1 << 18  # floats

LOADS = (
    # The dataset is what takes long.
    Load("waits for a disk, 1 worker", ("fetching",), _sleepy(0.005), _workers(1)),
    Load("waits for a disk, 2 workers", ("fetching",), _sleepy(0.005), _workers(2)),
    Load("waits for a network, 4 workers", ("fetching",), _sleepy(0.015), _workers(4)),
    Load(
        "n equal workers in step, every n-th step waits",
        ("fetching",),
        _sleepy(0.010),
        _workers(4),
        step_s=0.008,
    ),
    Load(
        "n equal workers in step, one batch ahead each",
        ("fetching",),
        _sleepy(0.010),
        _workers(4, prefetch_factor=1),
        step_s=0.008,
    ),
    Load("a stream", ("fetching",), _of(Stream, sleep_s=0.005), _workers(2)),
    Load("whole requests", ("fetching",), _of(Batched, sleep_s=0.005), _workers(2)),
    Load("out of order", ("fetching",), _sleepy(0.005), _workers(2, in_order=False)),
    Load("single samples", ("fetching",), _sleepy(0.012), _workers(2, batch_size=None), size=1),
    Load("uneven samples", ("fetching",), _sleepy(0.005, spread=0.8), _workers(2)),
    Load("decodes, 1 worker on 2 cores", ("fetching",), _busy(0.004), _workers(1)),
    # The collate function is.
    Load("collates slowly, waiting", ("collating",), FREE, _workers(2, collate_fn=Collate(0.03))),
    Load(
        "collates slowly, computing",
        ("collating",),
        FREE,
        _workers(1, collate_fn=Collate(burn_s=0.02)),
    ),
    Load(
        "collates longer than it fetches",
        ("collating",),
        _sleepy(0.002),
        _workers(2, collate_fn=Collate(0.02)),
    ),
    Load(
        "collates a stream",
        ("collating",),
        _of(Stream),
        _workers(2, collate_fn=Collate(0.025)),
    ),
    Load(
        "collates whole requests",
        ("collating",),
        _of(Batched),
        _workers(2, collate_fn=Collate(0.025)),
    ),
    # The trainer's own part of next() is.
    Load("draws slowly", ("transport",), FREE, _workers(2, draws=0.01), step_s=0.002),
    Load("draws slowly, 4 workers", ("transport",), FREE, _workers(4, draws=0.02), step_s=0.01),
    Load(
        "draws longer than it fetches",
        ("transport",),
        _sleepy(0.001),
        _workers(2, draws=0.02),
        step_s=0.005,
    ),
    # The step is.
    Load("steps slowly", ("step",), _sleepy(0.001), _workers(2), step_s=0.03),
    Load("steps slowly, computing", ("step",), FREE, _workers(1), step_s=0.03, burns=True),
    Load("steps slowly, 1 worker", ("step",), _sleepy(0.002), _workers(1), step_s=0.03),
    Load("data for nothing", ("step",), FREE, _workers(2), step_s=0.01),
    Load("steps slowly over large batches", ("step",), _wide(MB), _workers(2), step_s=0.06),
    Load("a stream that is fast", ("step",), _of(Stream, sleep_s=0.001), _workers(2), step_s=0.03),
    # Batches are held.
    Load(
        "keeps all batches",
        ("held",),
        _wide(2 * MB),
        _workers(2, slots=6),
        step_s=0.002,
        keeps=1000,
        batches=40,
    ),
    Load(
        "keeps the last batches",
        ("held",),
        _wide(2 * MB),
        _workers(2, slots=6),
        step_s=0.002,
        keeps=8,
        batches=60,
    ),
    Load("three slots for four workers", ("held",), _sleepy(0.005), _workers(4, slots=3)),
    Load("two slots for three workers", ("held",), _sleepy(0.006), _workers(3, slots=2)),
    Load(
        "few slots and two batches in use",
        ("held",),
        _sleepy(0.008),
        _workers(6, slots=4),
        keeps=2,
    ),
    # Single samples take long.
    Load(
        "one sample in 100 takes long",
        ("sample",),
        _sleepy(0.0005, slow_s=0.15, every=100),
        _workers(2),
        step_s=0.01,
        batches=240,
    ),
    Load(
        "one sample in 50 takes long, 4 workers",
        ("sample",),
        _sleepy(0.001, slow_s=0.12, every=50),
        _workers(4),
        step_s=0.012,
        batches=240,
    ),
    Load(
        "one sample in 200 takes very long",
        ("sample",),
        _sleepy(0.001, slow_s=0.5, every=200),
        _workers(2),
        step_s=0.012,
        batches=240,
    ),
    Load(
        "slow samples in whole requests",
        ("sample",),
        _of(Batched, sleep_s=0.001, slow_s=0.2, every=100),
        _workers(2),
        step_s=0.01,
        batches=240,
    ),
    Load(
        "slow samples in a stream",
        ("sample",),
        _of(Stream, sleep_s=0.001, slow_s=0.2, every=100),
        _workers(2),
        step_s=0.01,
        batches=240,
    ),
    # The same, and the batches behind them wait for their workers: dynamic assignment is the cure.
    Load(
        "slow samples in one worker's turns only",
        ("sample",),
        _sleepy(0.005, slow_s=0.1, every=80),
        _workers(4, prefetch_factor=4),
        step_s=0.008,
        batches=240,
    ),
    Load(
        "many slow samples at no regular distance",
        ("sample",),
        _sleepy(0.004, slow_s=0.1, every=50, scattered=True),
        _workers(4, prefetch_factor=4),
        step_s=0.008,
        batches=240,
    ),
    Load(
        "many slow samples, in whole requests",
        ("sample",),
        _of(Batched, sleep_s=0.004, slow_s=0.1, every=50, scattered=True),
        _workers(4, prefetch_factor=4),
        step_s=0.008,
        batches=240,
    ),
    # One worker is slow.
    Load(
        "one of 2 workers is slow", ("worker",), _sleepy(0.001, slow_s=0.008, worker=1), _workers(2)
    ),
    Load(
        "one of 4 workers is slow",
        ("worker",),
        _sleepy(0.002, slow_s=0.01, worker=2),
        _workers(4),
        step_s=0.006,
    ),
    Load(
        "one of 3 workers is slow, a stream",
        ("worker",),
        _of(Stream, sleep_s=0.002, slow_s=0.01, worker=0),
        _workers(3),
        step_s=0.006,
    ),
    Load(
        "one of 4 workers is twice as slow",
        ("worker",),
        _sleepy(0.004, slow_s=0.006, worker=0),
        _workers(4),
        step_s=0.006,
    ),
    # Pages for batches are short.
    Load(
        "room for two batches, four workers",
        ("memory",),
        _wide(4 * MB, sleep_s=0.002),
        _workers(4, ring_bytes=36 << 20),
        step_s=0.002,
        batches=60,
        size=4,
    ),
    Load(
        "room for one batch and a half",
        ("memory",),
        _wide(4 * MB, sleep_s=0.004),
        _workers(2, ring_bytes=26 << 20),
        step_s=0.002,
        batches=60,
    ),
    # Cores are short.
    Load("8 workers compute on few cores", ("cpu",), _busy(0.004), _workers(8), step_s=0.002),
    Load(
        "6 workers compute beside a computing step",
        ("cpu",),
        _busy(0.004),
        _workers(6),
        step_s=0.004,
        burns=True,
    ),
    Load(
        "12 workers collate on few cores",
        ("cpu",),
        FREE,
        _workers(12, collate_fn=Collate(burn_s=0.012)),
        step_s=0.002,
    ),
)


def make(load: Load, kind: type, **changed: Any) -> Any:
    """
    Make the loader of a load, with some options changed.

    The epoch is four times as long as what is ordered ahead, or longer.
    """
    options = {"batch_size": load.size, **load.options, **changed}
    ahead = options["num_workers"] * options.get("prefetch_factor", 2)
    count = max(load.batches, 4 * ahead) * load.size
    draw_s = options.pop("draws", None)
    if draw_s is not None:
        del options["batch_size"]
        options["batch_sampler"] = Draws(count, load.size, draw_s)
    return kind(load.dataset(count), **options)
