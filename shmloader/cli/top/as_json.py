"""What `shmloader top --json` prints: one object, whose keys docs/tuning.md lists."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from shmloader.cli.attach.trainers import LiveTrainer
from shmloader.cli.top.verdicts import last_change, verdict
from shmloader.views.live import LiveLoader

_NO_NUMBERS = ("pace", "records", "plate", "view", "workers")


def as_record(trainers: Iterable[LiveTrainer]) -> dict[str, Any]:
    """Make an object of what was seen, which `json` can write."""
    return {"trainers": [_trainer(trainer) for trainer in trainers]}


def _trainer(trainer: LiveTrainer) -> dict[str, Any]:
    return {
        "pid": trainer.process.pid,
        "command": trainer.process.command,
        "is_stopped": trainer.is_stopped,
        "loaders": [_loader(trainer, loader) for loader in trainer.loaders],
        "unread": list(trainer.unread),
    }


def _loader(trainer: LiveTrainer, loader: LiveLoader) -> dict[str, Any]:
    pace = asdict(loader.pace)
    del pace["usual_fetch_s"]
    return {
        **{name: value for name, value in vars(loader).items() if name not in _NO_NUMBERS},
        **pace,
        "verdict": None if trainer.is_stopped else verdict(loader),
        "last_change": last_change(loader),
        "workers": [asdict(worker) for worker in loader.workers],
    }
