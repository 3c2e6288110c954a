"""How much the demo does, in full and with `--quick`."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Sizes:
    """How much the demo does: one training per contender, then rounds of large batches."""

    workers: int
    seed: int
    epochs: int
    tiles_per_photograph: int
    batch_size: int
    pool_samples: int
    large_batch_size: int
    large_batches: int
    rounds: int


FULL = Sizes(
    workers=2,
    seed=0,
    epochs=8,
    tiles_per_photograph=160,
    batch_size=64,
    pool_samples=512,
    large_batch_size=64,
    large_batches=24,
    rounds=11,
)
QUICK = replace(FULL, epochs=2, tiles_per_photograph=40, batch_size=32, large_batches=12, rounds=3)
