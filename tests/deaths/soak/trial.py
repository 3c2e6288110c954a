"""One phase: the run without deaths, torch's, and the one with the killer, compared."""

from __future__ import annotations

import argparse
import contextlib
import signal
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torch.utils.data import DataLoader as TorchDataLoader

from shmloader import DataLoader
from shmloader.errors import RestartWarning
from tests.deaths.soak import flatness
from tests.deaths.soak.delivery import Mistake, compare, digests
from tests.deaths.soak.killer import Killer
from tests.deaths.soak.phases import Phase, make_loader

TORCH_PART = 4  # of so many batches of ours, torch delivers the first one too
_SAMPLES = 24
_SAMPLES_APART = 5  # batches, at least, because a sample takes as long as some of them
_STOP_TIMEOUTS = 3  # from one stop to the next, in timeouts of the loader
_NO_END = 1_000_000_000  # restarts: the budget is not tested here
_BATCH_MB = 2  # of shared memory that a batch takes
_STALLED_S = 60  # without a batch; longer than any number of deaths explains


@dataclass
class Result:
    """
    The outcome of a phase.

    Attributes:
        killed, stopped: Workers that were sent a signal.
        nurseries: How many nurseries were killed.
        restarts: Workers that were replaced; `hung` of them because the timeout ran out.
        changes: What was held at first and at last, while batches flowed and workers died.
        mistakes: What must not be; empty if all is well.
    """

    phase: str
    batches: int
    torch_batches: int = 0
    killed: int = 0
    stopped: int = 0
    nurseries: int = 0
    restarts: int = 0
    hung: int = 0
    changes: list[flatness.Change] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)


class Trial:
    """Puts one phase to the trial, as the command's options say."""

    def __init__(self, phase: Phase, batches: int, options: argparse.Namespace):
        self._phase = phase
        self._options = options
        self._expected: list[str] = []
        self._samples: list[dict[str, float]] = []
        self.result = Result(phase.name, batches, -(-batches // TORCH_PART))

    def deliver_calmly(self) -> None:
        """Run it without deaths, and its first part with torch's loader."""
        result = self.result
        with self._noting("without deaths"), self._make_loader(DataLoader) as loader:
            self._expected = list(self._digests(loader, result.batches))
        if not result.mistakes:
            self._compare_with_torch()

    def deliver_with_deaths(self) -> None:
        """Run it once more while workers die, and judge the outcome."""
        if self.result.mistakes:
            return  # there is nothing to compare with
        with self._noting("workers die"), counting(self.result):
            self._judge(self._compare_with_deaths())

    def _compare_with_torch(self) -> None:
        with self._noting("torch"):
            loader = self._make_loader(TorchDataLoader)
            batches = self.result.torch_batches
            compare(self._expected[:batches], self._digests(loader, batches))

    def _compare_with_deaths(self) -> int:
        """Compare, and return how many restarts the loader has counted."""
        result, timeout_s, given = self.result, self._phase.timeout_s, self._options
        killer = Killer(given.period, _STOP_TIMEOUTS * timeout_s, given.kills, given.seed)
        options = {"restarts": _NO_END, "timeout": timeout_s}
        try:
            # The killer ends first: stopped workers must go on before the loader can close.
            with self._make_loader(DataLoader, **options) as loader, killer:
                compare(self._expected, self._sampled(self._digests(loader, result.batches)))
                return loader.stats().restarts
        finally:
            result.killed, result.stopped = killer.killed, killer.stopped
            result.nurseries = killer.nurseries

    def _make_loader(self, loader_class: type, **options):
        given = self._options
        return make_loader(self._phase, loader_class, given.workers, given.seed, **options)

    def _digests(self, loader, batches: int) -> Iterator[str]:
        """Pass hashes on; if the next one takes too long, the alarm ends this program."""
        signal.alarm(_STALLED_S)
        try:
            for digest in digests(self._phase, loader, batches):
                yield digest
                signal.alarm(_STALLED_S)
        finally:
            signal.alarm(0)

    def _sampled(self, found: Iterable[str]) -> Iterator[str]:
        """Pass hashes on and take samples in between."""
        every = max(_SAMPLES_APART, self.result.batches // _SAMPLES)
        for number, digest in enumerate(found, start=1):
            if number % every == 0:
                self._samples.append(flatness.sample())
            yield digest

    def _judge(self, counted: int) -> None:
        result = self.result
        healed = result.restarts - result.hung
        result.changes = flatness.changes(self._samples, self._phase.window * _BATCH_MB)
        self._require(
            counted == result.restarts, f"{counted} restarts in stats(), {result.restarts} warnings"
        )
        self._require(
            healed <= result.killed,
            f"{healed} dead workers were replaced, but only {result.killed} were killed",
        )
        self._require(healed > 0, "no worker that was killed was replaced")
        self._require(
            bool(result.hung) == bool(self._phase.timeout_s),
            f"{result.hung} workers were replaced because they hung",
        )
        for change in result.changes:
            self._require(not change.is_growth, str(change))

    def _require(self, is_so: bool, otherwise: str) -> None:
        if not is_so:
            self._note("workers die", otherwise)

    @contextlib.contextmanager
    def _noting(self, run: str) -> Iterator[None]:
        """Turn what is raised into a mistake of the phase."""
        try:
            yield
        except Mistake as mistake:
            self._note(run, str(mistake))
        except Exception as error:  # any exception is the phase's result
            self._note(run, f"{type(error).__name__}: {error}")

    def _note(self, run: str, text: str) -> None:
        self.result.mistakes.append(f"{self.result.phase}, {run}: {text}")


@contextlib.contextmanager
def counting(result: Result) -> Iterator[None]:
    """Count warnings of restarts instead of showing them."""

    def count(message, category, *place) -> None:
        if not issubclass(category, RestartWarning):
            show(message, category, *place)
            return
        result.restarts += "it was replaced, and" in str(message)  # not that of a new nursery
        result.hung += "hung" in str(message)

    with warnings.catch_warnings():
        # Shown always, or Python would remember every text for ever.
        warnings.simplefilter("always", RestartWarning)
        show, warnings.showwarning = warnings.showwarning, count
        yield
