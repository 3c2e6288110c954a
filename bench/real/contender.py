"""
One training with one loader, in a process of its own; turns.py starts it and says what to do.

It answers each order on a pipe: WATCH and TRAIN with what `training` found, END with what the
loader did. None of it imports shmloader for torch's loader.
"""

import multiprocessing
import os
import traceback
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from bench.real import trainings
from bench.real.training import Training, seed, train, watch

SUBJECT, BASELINE = "ours", "torch"
WATCH, TRAIN, END = "watch", "train", "end"


def obey(pipe: Connection, name: str, contender: str, steps: int, folder: Path) -> None:
    """Obey until the end; what goes wrong is an answer too."""
    os.setsid()  # so that its workers can be found and ended when it is gone
    os.dup2(2, 1)  # what a training prints belongs into no table
    multiprocessing.set_start_method(None, force=True)  # workers start as in any program
    try:
        _obey(pipe, name, contender, steps, folder)
    except Exception:
        pipe.send({"mistake": traceback.format_exc(limit=-3)})


def _obey(pipe: Connection, name: str, contender: str, steps: int, folder: Path) -> None:
    torch.set_num_threads(1)  # others would wait for a core in a loop while workers need it
    if contender == SUBJECT:
        import shmloader

        shmloader.install()
    seed()
    training = trainings.make(name, folder, steps)
    while (order := pipe.recv()) != END:
        pipe.send(watch(training, steps) if order == WATCH else train(training))
    pipe.send(_ended(training, contender))


def _ended(training: Training, contender: str) -> dict[str, Any]:
    """Stop the workers. Returns what our loader counted, or nothing of torch's."""
    if contender == BASELINE:
        training.loader = None
        return {}
    import shmloader

    stats = shmloader.stats(training.loader)
    shmloader.close(training.loader)
    return asdict(stats)
