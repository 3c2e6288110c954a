"""What the tests with Accelerate train, in one process or in ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import accelerate
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState

import shmloader

from .training import Net
from .ways import WRAP, Way

ACCUMULATED = 3  # steps between two updates, which is no divisor of an epoch's
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
TORCHRUN += ["--local-addr=127.0.0.1", "--max-restarts=0"]


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Accelerate keeps its state for the process; each test has its own."""
    yield
    forget()


def forget() -> None:
    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()


def prepared(accelerator: accelerate.Accelerator, way: Way, loader: Any) -> Any:
    """
    Prepare a loader.

    Accelerate builds a loader of torch's from the one that it is given, so the way `wrap` wraps the
    one inside of what it made.
    """
    made = accelerator.prepare(loader)
    if way is WRAP and not isinstance(made.base_dataloader, shmloader.DataLoader):
        made.base_dataloader = shmloader.wrap(made.base_dataloader)
    return made


def train(
    accelerator: accelerate.Accelerator, loader: Iterable[Any], epochs: int = 2
) -> list[tuple[float, bool]]:
    """
    Train with accumulated gradients, which depends on where Accelerate believes an epoch ends.

    Returns:
        For each step its loss, and True if it was followed by an update.
    """
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer = accelerator.prepare(net, optimizer)
    steps = []
    for _ in range(epochs):
        for batch in loader:
            with accelerator.accumulate(net):
                pictures, labels = batch
                loss = torch.nn.functional.cross_entropy(net(pictures), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            steps.append((loss.item(), accelerator.sync_gradients))
    return steps
