"""What `shmloader top --json` prints: one object, whose keys docs/tuning.md lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from shmloader.cli.attach.trainers import LiveTrainer
from shmloader.cli.top.verdicts import crew, verdict
from shmloader.views.live import LiveCache, LiveLoader


def as_record(trainers: Iterable[LiveTrainer]) -> dict[str, Any]:
    """Make an object of what was seen, which `json` can write."""
    return {"trainers": [_trainer(trainer) for trainer in trainers]}


def _trainer(trainer: LiveTrainer) -> dict[str, Any]:
    return {
        "pid": trainer.process.pid,
        "command": trainer.process.command,
        "state": trainer.state,
        "since_s": trainer.since_s,
        "loaders": [_loader(trainer, loader) for loader in trainer.loaders],
        "unread": list(trainer.unread),
    }


def _loader(trainer: LiveTrainer, loader: LiveLoader) -> dict[str, Any]:
    pace = loader.pace
    return {
        "loader": loader.loader,
        "label": loader.label,
        "state": loader.state,
        "trainer": loader.trainer,
        "since_s": loader.since_s,
        "epoch": loader.epoch,
        "batch": loader.batch,
        "length": loader.length,
        "ahead": loader.ahead,
        "made": loader.made,
        "slots": loader.slots,
        "batches_per_s": pace.batches_per_s,
        "bytes_per_s": pace.bytes_per_s,
        "waiting": pace.waiting,
        "usual_sample_s": pace.usual_sample_s,
        "spilled": loader.spilled,
        "resident_bytes": loader.resident_bytes,
        "caches": [_cache(cache) for cache in loader.caches],
        "verdict": verdict(loader) if trainer.state != "stopped" else None,
        "crew": crew(loader),
        "workers": [asdict(worker) for worker in loader.workers],
    }


def _cache(cache: LiveCache) -> dict[str, Any]:
    seen = asdict(cache)
    del seen["users"]
    return {"cache": seen.pop("number"), "pid": seen.pop("owner_pid"), **seen}
