"""The loads: how each is made, by the cause that is right for it."""

from dataclasses import dataclass, field
from typing import Any

from bench.loads.costs import Batched, Cost, Draws, Samples, Stream, collate_at


@dataclass(frozen=True)
class Load:
    """
    A loop of known cause.

    Attributes:
        cost: Of a sample.
        options: The loader's, and `draws`, the seconds that drawing a batch takes.
        width: Floats in a sample; only `Samples` has another number than 16.
        step_s: Seconds of the step; burns: of processor time.
        keeps: How many batches the loop holds.
        others: Beside it other programs use all cores.
    """

    name: str
    cost: Cost
    workers: int
    options: dict[str, Any] = field(default_factory=dict)
    kind: type = Samples
    width: int = 16
    step_s: float = 0.005
    burns: bool = False
    keeps: int = 1
    batches: int = 120
    others: bool = False


def _slow(sleep_s: float, slow_s: float, every: int, **more: Any) -> Cost:
    return Cost(sleep_s, slow_s=slow_s, every=every, **more)


def _lame(sleep_s: float, slow_s: float, worker: int) -> Cost:
    return Cost(sleep_s, slow_s=slow_s, worker=worker)


def _room(megabytes: int) -> dict[str, int]:
    return {"ring_bytes": megabytes << 20}


_FREE = Cost()
_MB = 1 << 18  # floats
_DEEP = {"prefetch_factor": 4}
_RARE = {"step_s": 0.01, "batches": 240}
_LATER = {"step_s": 0.012, "batches": 240}
_OFTEN = {"step_s": 0.008, "batches": 240}  # dynamic assignment is the cure
_MANY = _slow(0.004, 0.1, 50, scattered=True)
_LARGE = {"width": 2 * _MB, "step_s": 0.002}
_LARGER = {"width": 4 * _MB, "step_s": 0.002, "batches": 60}
_BURNS = {"step_s": 0.004, "burns": True}
_QUICK = {"step_s": 0.006}
_NEAR = {"prefetch_factor": 1}
_FEW = {"slots": 6}
_COMPUTES, _HALF = Cost(burn_s=0.004), Cost(burn_s=0.002)
_COLLATES = {"collate_fn": collate_at(burn_s=0.012)}

_BY_CAUSE = {
    "fetching": [
        Load("waits for a disk, 1 worker", Cost(0.005), 1),
        Load("waits for a disk, 2 workers", Cost(0.005), 2),
        Load("waits for a network, 4 workers", Cost(0.015), 4),
        Load("n equal workers in step, every n-th step waits", Cost(0.010), 4, step_s=0.008),
        Load("n equal workers in step, one batch ahead each", Cost(0.010), 4, _NEAR, step_s=0.008),
        Load("a stream", Cost(0.005), 2, kind=Stream),
        Load("whole requests", Cost(0.005), 2, kind=Batched),
        Load("out of order", Cost(0.005), 2, {"in_order": False}),
        Load("single samples", Cost(0.012), 2, {"batch_size": None}),
        Load("uneven samples", Cost(0.005, spread=0.8), 2),
        Load("decodes, 1 worker on 2 cores", _COMPUTES, 1),
        Load("waits for a network beside other programs", Cost(0.015), 2, others=True),
    ],
    "collating": [
        Load("collates slowly, waiting", _FREE, 2, {"collate_fn": collate_at(0.03)}),
        Load("collates slowly, computing", _FREE, 1, {"collate_fn": collate_at(burn_s=0.02)}),
        Load("collates longer than it fetches", Cost(0.002), 2, {"collate_fn": collate_at(0.02)}),
        Load("collates a stream", _FREE, 2, {"collate_fn": collate_at(0.025)}, Stream),
        Load("collates whole requests", _FREE, 2, {"collate_fn": collate_at(0.025)}, Batched),
    ],
    # The trainer's own part of next() takes long.
    "transport": [
        Load("draws slowly", _FREE, 2, {"draws": 0.01}, step_s=0.002),
        Load("draws slowly, 4 workers", _FREE, 4, {"draws": 0.02}, step_s=0.01),
        Load("draws longer than it fetches", Cost(0.001), 2, {"draws": 0.02}),
    ],
    "step": [
        Load("steps slowly", Cost(0.001), 2, step_s=0.03),
        Load("steps slowly, computing", _FREE, 1, step_s=0.03, burns=True),
        Load("steps slowly, 1 worker", Cost(0.002), 1, step_s=0.03),
        Load("data for nothing", _FREE, 2, step_s=0.01),
        Load("steps slowly over large batches", _FREE, 2, width=_MB, step_s=0.06),
        Load("a stream that is fast", Cost(0.001), 2, kind=Stream, step_s=0.03),
    ],
    "held": [
        Load("keeps all batches", _FREE, 2, _FEW, keeps=1000, batches=40, **_LARGE),
        Load("keeps the last batches", _FREE, 2, _FEW, keeps=8, batches=60, **_LARGE),
        Load("three slots for four workers", Cost(0.005), 4, {"slots": 3}),
        Load("two slots for three workers", Cost(0.006), 3, {"slots": 2}),
        Load("few slots and two batches in use", Cost(0.008), 6, {"slots": 4}, keeps=2),
    ],
    "sample": [
        Load("one sample in 100 takes long", _slow(0.0005, 0.15, 100), 2, **_RARE),
        Load("one sample in 50 takes long, 4 workers", _slow(0.001, 0.12, 50), 4, **_LATER),
        Load("one sample in 200 takes very long", _slow(0.001, 0.5, 200), 2, **_LATER),
        Load("slow samples in whole requests", _slow(0.001, 0.2, 100), 2, kind=Batched, **_RARE),
        Load("slow samples in a stream", _slow(0.001, 0.2, 100), 2, kind=Stream, **_RARE),
        Load("slow samples in one worker's turns only", _slow(0.005, 0.1, 80), 4, _DEEP, **_OFTEN),
        Load("many slow samples at no regular distance", _MANY, 4, _DEEP, **_OFTEN),
        Load("many slow samples, in whole requests", _MANY, 4, _DEEP, Batched, **_OFTEN),
    ],
    "worker": [
        Load("one of 2 workers is slow", _lame(0.001, 0.008, 1), 2),
        Load("one of 4 workers is slow", _lame(0.002, 0.01, 2), 4, **_QUICK),
        Load("one of 3 workers is slow, a stream", _lame(0.002, 0.01, 0), 3, kind=Stream, **_QUICK),
        Load("one of 4 workers is twice as slow", _lame(0.004, 0.006, 0), 4, **_QUICK),
    ],
    # Pages for batches are short.
    "memory": [
        Load("room for two batches, four workers", Cost(0.002), 4, _room(36), **_LARGER),
        Load("room for one batch and a half", Cost(0.004), 2, _room(26), **_LARGER),
    ],
    "cpu": [
        Load("8 workers compute on few cores", _COMPUTES, 8, step_s=0.002),
        Load("6 workers compute beside a computing step", _COMPUTES, 6, **_BURNS),
        Load("12 workers collate on few cores", _FREE, 12, _COLLATES, step_s=0.002),
    ],
    # Other programs' load: no option is a cure.
    "others": [
        Load(
            "1 worker computes beside other programs", _HALF, 1, burns=True, others=True, **_QUICK
        ),
        Load("2 workers compute beside other programs", _HALF, 2, others=True, **_BURNS),
        Load("8 workers compute beside other programs", _COMPUTES, 8, others=True),
        Load("steps beside other programs", _FREE, 2, step_s=0.02, burns=True, others=True),
    ],
    # Of short epochs, of which each starts its workers.
    "start": [
        Load("epochs of 30 ms", _FREE, 4, step_s=0.0005, batches=32),
        Load("epochs of 50 ms, computing", _FREE, 4, step_s=0.001, burns=True, batches=32),
    ],
}

LOADS = {load.name: load for loads in _BY_CAUSE.values() for load in loads}
CAUSES = {load.name: cause for cause, loads in _BY_CAUSE.items() for load in loads}


def make(load: Load, kind: type, **changed: Any) -> Any:
    """
    Make the loader of a load, with some options changed.

    The epoch is four times as long as what is ordered ahead, or longer.
    """
    options = {"batch_size": 4, "num_workers": load.workers, **load.options, **changed}
    ahead = options["num_workers"] * options.get("prefetch_factor", 2)
    size = options["batch_size"] or 1
    count = max(load.batches, 4 * ahead) * size
    draw_s = options.pop("draws", None)
    if draw_s is not None:
        del options["batch_size"]
        options["batch_sampler"] = Draws(count, size, draw_s)
    more = {"width": load.width} if load.kind is Samples else {}
    return kind(load.kind(load.cost, count, **more), **options)
