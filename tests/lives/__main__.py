"""
A fuzzer over options: loaders with random options in random lives, beside undisturbed ones.

    python -m tests.lives                            a minute of it
    python -m tests.lives --seconds 7200 --jobs 2
    python -m tests.lives --seed 1234 --cases 1      the case of that seed again
    python -m tests.lives --case 'Case(...)'         a case as it was printed

Each case draws a dataset, a sampler, torch's arguments, our options and what happens: the loop is
left, workers are killed, a state goes on in a new loader, the trainer forks. An undisturbed loader
beside it, torch's where torch defines the bits, says what should come. A case that fails is printed
with the command that replays it. The exit code is 0 if none failed.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
import warnings
from collections import Counter

import torch

from tests.lives.bounded import LIMIT_S, Outcome, Running, settle
from tests.lives.case import Case, Data, Event, draw, on_a_gpu

_POLL_S = 0.005
_TELL_EVERY_S = 60.0
_TEXT_MOST = 6000


def main(arguments: list[str]) -> int:
    """Run cases until the time is over, enough have run or enough have failed."""
    options = _options(arguments)
    warnings.simplefilter("ignore")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # this process forks before it uses CUDA
    torch.set_num_threads(1)  # a forked child cannot use the threads of OpenMP
    gc.freeze()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with what it started
    if options.case:
        case = eval(options.case, {each.__name__: each for each in (Case, Data, Event)})
        outcomes = [live(case, options.limit_s) for _ in range(options.cases or 1)]
        for outcome in outcomes:
            print(f"{outcome.kind or 'well'} {outcome.text}"[:_TEXT_MOST], flush=True)
        return int(any(outcome.kind for outcome in outcomes))
    return Run(options).go()


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.lives")
    parser.add_argument("--seconds", type=float, default=60, help="how long (default: 60)")
    parser.add_argument("--cases", type=int, help="how many cases at most")
    parser.add_argument("--seed", type=int, help="of the first case; each next one has the next")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cases at a time")
    parser.add_argument("--failures", type=int, default=1, help="how many to find (default: 1)")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="for each case")
    parser.add_argument("--case", help="a case to live, as it was printed; --cases times")
    parser.add_argument("--gpu", action="store_true", help="all for a GPU")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(4), "little")
    return options


def live(case: Case, limit_s: float) -> Outcome:
    """Live one case, and wait for its outcome."""
    running = Running(case, limit_s)
    while (outcome := running.outcome()) is None:
        time.sleep(_POLL_S)
    return outcome


class Run:
    """Lives cases, a few at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._began_at = self._told_at = time.monotonic()
        self._running: dict[int, Running] = {}
        self._next_seed = options.seed
        self._over = 0
        self._failed: dict[int, str] = {}

    def go(self) -> int:
        """Returns the exit code."""
        print(f"lives from seed {self._options.seed} on", flush=True)
        try:
            while self._running or self._goes_on():
                self._begin()
                self._collect()
                time.sleep(_POLL_S)
        finally:
            for running in self._running.values():
                running.stop()
            self._tell()
        return int(bool(self._failed))

    def _goes_on(self) -> bool:
        options = self._options
        begun = self._next_seed - options.seed
        is_time = time.monotonic() - self._began_at < options.seconds
        is_enough = options.cases is not None and begun >= options.cases
        return is_time and not is_enough and len(self._failed) < options.failures

    def _begin(self) -> None:
        while len(self._running) < self._options.jobs and self._goes_on():
            case = draw(self._next_seed)
            case = settle(on_a_gpu(case) if self._options.gpu else case)
            self._running[self._next_seed] = Running(case, self._options.limit_s)
            self._next_seed += 1

    def _collect(self) -> None:
        for seed, running in list(self._running.items()):
            outcome = running.outcome()
            if outcome is not None:
                del self._running[seed]
                self._over += 1
                if outcome.kind:
                    self._failed[seed] = outcome.kind
                    self._print(seed, running.case, outcome)
        if time.monotonic() - self._told_at > _TELL_EVERY_S:
            self._tell()

    def _print(self, seed: int, case: Case, outcome: Outcome) -> None:
        print(f"\nseed {seed}: {outcome.kind}: {outcome.text[:_TEXT_MOST]}")
        gpu = " --gpu" * self._options.gpu
        print(f"{case}\nreplay: python -m tests.lives --seed {seed} --cases 1{gpu}", flush=True)

    def _tell(self) -> None:
        self._told_at = time.monotonic()
        seconds = self._told_at - self._began_at
        kinds = dict(Counter(self._failed.values()))
        print(
            f"{self._over} cases in {seconds:.0f} s, {self._over / seconds:.1f} a second; "
            f"failed: {len(self._failed)} {kinds or ''} {[*self._failed] or ''}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
