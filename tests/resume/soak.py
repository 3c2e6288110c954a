"""
A training that is killed again and again goes on to the batches of the undisturbed one.

    python -m tests.resume.soak                     200 kills
    python -m tests.resume.soak --kills 20 --seed 5

Each run trains for some epochs and saves the loader's state, with what it has had of batches, after
each step. At a random moment the trainer and all of its processes are killed with SIGKILL, and the
next one goes on with a random number of workers, way of assignment and depth. When the last epoch
is over, one digest over all batches, augmented by `random`, `numpy.random` and torch, must be that
of a run that nobody killed; then the next training begins.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import pickle
import random
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from shmloader import DataLoader
from tests.resume.interrupted import COUNT, Drawing, disturb, generator_of

_EPOCHS, _BATCH = 4, 2
_STEP_S = 0.01
_LONGEST_S = 0.8  # until a kill
_STALLED_S = 60


class Slow(Drawing):
    """Samples that take a moment, so that kills hit fetches too."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return super().__getitem__(index)


def main(arguments: list[str]) -> int:
    """Kill and go on; the exit code is 0 if every training had the batches of the undisturbed."""
    options = _options(arguments)
    chance = random.Random(options.seed)
    kills = trainings = 0
    with TemporaryDirectory() as folder:
        expected = _digest(_whole(Path(folder)))
        while kills < options.kills:
            place = Path(folder) / f"training {trainings}"
            while not _is_over(place):
                kills += _run_and_kill(place, chance)
            trainings += 1
            if expected != (actual := _digest(_load(place)["batches"])):
                print(f"training {trainings}, seed {options.seed}: {actual} is not {expected}")
                return 1
            print(f"{kills} kills, {trainings} trainings: {actual}")
    return 0


def _digest(batches: list[bytes]) -> str:
    return (
        f"{len(batches)} batches, {hashlib.blake2b(b''.join(batches), digest_size=8).hexdigest()}"
    )


def _whole(folder: Path) -> list[bytes]:
    """The batches of a training that is left alone, in a process of its own."""
    child = _start(folder / "undisturbed", {"num_workers": 2})
    _, status = os.waitpid(child, 0)
    assert status == 0, "the undisturbed training failed"
    batches: list[bytes] = _load(folder / "undisturbed")["batches"]
    return batches


def _run_and_kill(place: Path, chance: random.Random) -> int:
    """Go on with a training until it ends or is killed. Returns 1 if it was killed."""
    child = _start(place, _way(chance))
    end = time.monotonic() + chance.uniform(0, _LONGEST_S)
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            assert _is_over(place), "a training ended before its end"
            return 0
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):  # not its own group yet
        os.killpg(child, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 1


def _way(chance: random.Random) -> dict[str, object]:
    workers = chance.randrange(5)
    if workers == 0:
        return {"num_workers": 0}
    return {
        "num_workers": workers,
        "prefetch_factor": chance.randrange(1, 4),
        "assignment": chance.choice(["cycle", "dynamic"]),
        "restarts": chance.randrange(2),
        "slots": chance.choice([None, 2]),
    }


def _start(place: Path, way: dict[str, object]) -> int:
    """Fork a trainer that leads a group of its own; workers belong to it."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setpgid(0, 0)
            signal.alarm(_STALLED_S)
            _train(place, way)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def _train(place: Path, way: dict[str, object]) -> None:
    warnings.simplefilter("ignore")
    saved = _load(place)
    disturb(os.getpid())
    with DataLoader(
        Slow(),
        _BATCH,
        shuffle=True,
        generator=generator_of(),
        seed_by="batch",
        **way,  # type: ignore[arg-type]
    ) as loader:
        if saved["loader"] is not None:
            loader.load_state_dict(saved["loader"])
        while saved["epoch"] < _EPOCHS:
            for batch in loader:
                saved["batches"].append(batch.numpy().tobytes())
                saved["loader"] = loader.state_dict()
                _save(place, saved)
                time.sleep(_STEP_S)
            saved["loader"], saved["epoch"] = loader.state_dict(), saved["epoch"] + 1
            _save(place, saved)


def _load(place: Path) -> dict[str, object]:
    if not place.exists():
        return {"epoch": 0, "loader": None, "batches": []}
    saved: dict[str, object] = pickle.loads(place.read_bytes())
    return saved


def _save(place: Path, saved: dict[str, object]) -> None:
    """Write the checkpoint whole: a kill leaves the last one."""
    written = place.with_suffix(".new")
    written.write_bytes(pickle.dumps(saved))
    written.replace(place)


def _is_over(place: Path) -> bool:
    saved = _load(place)
    return saved["epoch"] == _EPOCHS and len(saved["batches"]) == _EPOCHS * -(-COUNT // _BATCH)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.resume.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
