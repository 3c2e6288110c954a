"""
An accelerator beside a life: copies from batches that are dropped next, done at any time.

It is the machine's GPU if there is one, and otherwise one that is none.
"""

from __future__ import annotations

import random
import unittest.mock
from typing import Any

import torch

from shmloader.device.walk import moved
from tests.device.driver import Gpu
from tests.lives.case import Case
from tests.lives.material import plain

_SMALL = {"shmloader.memory.policy.LOCKED_MIN_BYTES": 1}  # slots of small batches are locked too
_SIDE = 1024  # of the matrices that keep a stream busy


def of(case: Case) -> Accelerator | None:
    """Have an accelerator in this process, from now on; None if a case needs none."""
    if not case.torch.get("pin_memory") and case.ours.get("device") != "cuda":
        return None
    return RealGpu(case) if torch.cuda.is_available() else NoGpu(case)


class Accelerator:
    """What both kinds do."""

    def __init__(self, case: Case, names: dict[str, Any]) -> None:
        self._case = case
        self._pins = bool(case.torch.get("pin_memory"))
        self._chance = random.Random(case.seed)
        self._copied: list[tuple[Any, Any]] = []
        for name, value in {**_SMALL, **names}.items():
            unittest.mock.patch(name, value).start()

    def copy(self, batch: Any, rows: Any) -> None:
        """Begin copies of a batch that may be dropped next."""
        if self._pins:
            self._copied.append((moved(batch, self._begin), rows))

    def check(self) -> str | None:
        """Let all copies be done. Returns what is wrong with them."""
        self._finish()
        for batch, rows in self._copied:
            if plain(batch, self._case) != rows:
                return f"a copy of a dropped batch has {plain(batch, self._case)} instead of {rows}"
        self._copied.clear()
        return None

    def _begin(self, tensor: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError


class NoGpu(Accelerator):
    """The stand-in of tests/device."""

    def __init__(self, case: Case) -> None:
        self._gpu = Gpu()
        super().__init__(case, self._gpu.names)
        if not self._pins:  # what it hands out has to be there
            self._gpu.backend.wait = self._wait  # type: ignore[method-assign]

    def _wait(self, event: int, tensors: Any) -> None:
        self._finish()

    def copy(self, batch: Any, rows: Any) -> None:
        """Begin them, and let some be done."""
        super().copy(batch, rows)
        if self._chance.random() < 0.5:
            self._gpu.driver.finish(self._chance.randrange(4))

    def _begin(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._gpu.copy(tensor)

    def _finish(self) -> None:
        self._gpu.driver.finish()

    def check(self) -> str | None:
        """As any, and what the driver may not have been asked."""
        faults = self._gpu.driver.faults + self._gpu.backend.faults
        return super().check() or ", ".join(faults) or None


class RealGpu(Accelerator):
    """The machine's: copies wait behind other work, on any of several streams."""

    def __init__(self, case: Case) -> None:
        super().__init__(case, {})
        self._streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(2))]
        self._matrix = torch.rand(_SIDE, _SIDE, device="cuda")

    def copy(self, batch: Any, rows: Any) -> None:
        """Begin them on a stream that is busy; now and then a graph is captured."""
        with torch.cuda.stream(self._chance.choice(self._streams)):
            for _ in range(self._chance.randrange(20)):
                self._matrix @ self._matrix
            super().copy(batch, rows)
        if self._chance.random() < 0.05:
            mode = self._chance.choice(("global", "thread_local", "relaxed"))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode=mode):
                self._matrix.mul_(1)
            graph.replay()

    def _begin(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_pinned():
            raise AssertionError("a plain tensor of a pinned batch is not pinned")
        return tensor.to("cuda", non_blocking=True)

    def _finish(self) -> None:
        torch.cuda.synchronize()
