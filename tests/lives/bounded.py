"""Lives a case in a process of its own, which is ended when it takes too long."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import random
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shmloader.autoscaling import autoscaler, windows
from shmloader.autoscaling.controller import Controller, Limits, Window
from shmloader.worker import growth
from tests.helpers.belongings import processes
from tests.helpers.programs import process_table, send
from tests.lives.case import Case
from tests.lives.judge import compare
from tests.lives.life import Life, Trace, Wrong
from tests.lives.material import open_loader

LIMIT_S = 120.0  # a case takes less than one second, a hundred times that on a busy machine
_GRACE_S = 5.0  # for processes that are just ending
_DUMP_S = 0.5
_IMPORTS = 5  # times as long, where each worker imports torch


@dataclass(frozen=True)
class Outcome:
    """
    How a case went.

    Attributes:
        kind: "" if all is well; otherwise what kind of failure it is.
        text: What to tell of it.
    """

    kind: str = ""
    text: str = ""


def settle(case: Case) -> Case:
    """Leave out arguments that torch refuses, and options that do not go together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if _refusal(case, False) and case.data.samples == 0:
            case = replace(case, data=replace(case.data, samples=12))
        for name, is_ours in (("torch", False), ("ours", True)):
            while (error := _refusal(case, is_ours)) is not None:
                given = getattr(case, name)
                if not given:
                    raise error
                case = _with_fewer(case, name, is_ours, str(error))
    return case


def _with_fewer(case: Case, name: str, is_ours: bool, words: str) -> Case:
    """Leave out what is refused, or one of two that do not go together."""
    spared = "restarts" if case.has("kill", "stop") else ""
    fewer = [_without(case, name, each) for each in getattr(case, name) if each != spared]
    refusals = [str(_refusal(each, is_ours) or "") for each in fewer]
    # None that is not refused: then one that is refused for another reason.
    best = min(range(len(fewer)), key=lambda each: (refusals[each] != "", refusals[each] == words))
    return fewer[best]


def _without(case: Case, name: str, argument: str) -> Case:
    given = {key: value for key, value in getattr(case, name).items() if key != argument}
    return replace(case, **{name: given})


def _refusal(case: Case, is_ours: bool) -> Exception | None:
    try:
        open_loader(case, is_ours)
    except (ValueError, TypeError) as error:
        return error
    return None


class Running:
    """A case that lives in a child of this process."""

    def __init__(self, case: Case, limit_s: float) -> None:
        self.case = case
        self._folder = Path(tempfile.mkdtemp(prefix="lives-"))
        if "multiprocessing_context" in case.torch:
            limit_s *= _IMPORTS
        self._ends_at = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._pid = os.fork()
        if not self._pid:
            _live_and_exit(case, self._folder)

    def outcome(self) -> Outcome | None:
        """Returns how it went; None while it lives."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid and time.monotonic() < self._ends_at:
            return None
        outcome = self._read(status) if pid else self._give_up()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        shutil.rmtree(self._folder)
        return outcome

    def stop(self) -> None:
        """End it, whatever it does."""
        self._ends_at = 0
        self._limit_s = 0
        while self.outcome() is None:
            pass

    def _read(self, status: int) -> Outcome:
        said = (self._folder / "said").read_text(errors="replace")
        try:
            with open(self._folder / "outcome", "rb") as file:
                return pickle.load(file)
        except FileNotFoundError:
            return Outcome("crash", f"wait status {status}\n{said}")

    def _give_up(self) -> Outcome:
        """Have each process of the case say where it is, and end them all."""
        places = "\n".join(_place_of(pid) for pid in _group(self._pid))
        if self._limit_s:
            for pid in filter(_dumps, _group(self._pid)):
                send(pid, signal.SIGUSR1)
                time.sleep(_DUMP_S)  # one after the other: they write into the same file
        for pid in _group(self._pid):
            send(pid, signal.SIGKILL)
        send(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        said = (self._folder / "said").read_text(errors="replace")
        return Outcome("hang", f"not over after {self._limit_s:g} s\n{places}\n{said}")


def _group(leader: int) -> list[int]:
    return [pid for pid, process in process_table().items() if process.group == leader]


def _dumps(pid: int) -> bool:
    """Returns True if a process catches the signal that has it write its stacks."""
    with contextlib.suppress(OSError):
        caught = Path("/proc", str(pid), "status").read_text().partition("SigCgt:")[2].split()[0]
        return bool(int(caught, 16) >> (signal.SIGUSR1 - 1) & 1)
    return False


def _place_of(pid: int) -> str:
    """Say what a process is, and where in the kernel it waits."""
    words = [str(pid)]
    for name in ("comm", "wchan"):
        with contextlib.suppress(OSError):
            words.append(Path("/proc", str(pid), name).read_text().strip())
    with contextlib.suppress(OSError, IndexError):
        words.append(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0])
    return " ".join(words)


def _live_and_exit(case: Case, folder: Path) -> None:
    """Live a case in this process, which is a child made for it."""
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        said = os.open(folder / "said", os.O_CREAT | os.O_RDWR | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        faulthandler.enable(said)
        faulthandler.register(signal.SIGUSR1, said, all_threads=True)
        outcome = _judged(case, said)
        with open(folder / "unfinished", "wb") as file:
            pickle.dump(outcome, file)
        os.rename(folder / "unfinished", folder / "outcome")
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _judged(case: Case, said: int) -> Outcome:
    warnings.simplefilter("ignore")
    growth._EVERY_S = 0.02
    _make_restless(random.Random(case.seed))
    expected = _undisturbed(case)
    begins_at = os.fstat(said).st_size
    try:
        difference = compare(case, expected, Life(case, is_ours=True, is_disturbed=True).run())
    except Wrong as error:
        return Outcome("wrong", str(error))
    except BaseException as error:
        return Outcome(f"raised {type(error).__name__}", traceback.format_exc())
    if difference is not None:
        return Outcome("differs", difference)
    left = _left_behind()
    if left:
        return Outcome("left behind", ", ".join(left))
    text = os.pread(said, 1 << 16, begins_at).decode(errors="replace")
    return Outcome("said", text) if text else Outcome()


def _make_restless(chance: random.Random) -> None:
    """Have workers come and go between any two batches, where their number is not fixed."""
    windows.LEAST_S, windows.LEAST_BATCHES = 0.0, 1
    windows._SETTLE_S = autoscaler._LOOK_S = 0.0

    def decide(self: Controller, window: Window, limits: Limits) -> int:
        return chance.randint(limits.least, limits.most)

    Controller.decide = decide  # type: ignore[method-assign]


def _undisturbed(case: Case) -> Trace:
    """Live with torch's loader, or with ours alone where it defines the draws."""
    torch_arguments = {name: value for name, value in case.torch.items() if name != "timeout"}
    by_batch = case.ours.get("seed_by") == "batch"
    plainly: dict[str, Any] = {"seed_by": "batch"} if by_batch else {}
    if case.workers and "max_workers" in case.ours:
        torch_arguments["num_workers"] = case.ours["max_workers"]  # as much is drawn ahead
    quiet = replace(case, torch=torch_arguments, ours=plainly)
    return Life(quiet, is_ours=by_batch, is_disturbed=False).run()


def _left_behind() -> list[str]:
    ends_at = time.monotonic() + _GRACE_S
    while left := sorted(processes()):
        if time.monotonic() > ends_at:
            return [f"{each} {_place_of(int(each.split()[-1]))}" for each in left]
        time.sleep(0.01)
    return []
