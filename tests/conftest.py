"""Every test ends, leaves nothing behind, and can be replayed with the same random choices."""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy
import pytest
import torch

from tests.helpers.forgery import Forger

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 120  # per test; ten times what the slowest takes, so only a hang reaches it

pytest_plugins = [
    "tests.helpers.belongings",
    "tests.torch.golden.plugin",
    "tests.helpers.selection",
    "tests.helpers.stage",
    "tests.helpers.endings",  # which imports the one above
]

# Timings are not asserted, and a failure prints what is needed to reproduce it.
hypothesis.settings.register_profile("shmloader", deadline=None, print_blob=True)
hypothesis.settings.load_profile("shmloader")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stress-seconds",
        type=float,
        default=2.0,
        metavar="N",
        help="how long each test that applies force does so (default: %(default)s)",
    )
    parser.addoption(
        "--seed", type=int, default=None, metavar="N", help="replay the run that printed this seed"
    )


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads the seed
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout: longest time a test may take, in seconds")
    if config.option.seed is None:
        config.option.seed = int.from_bytes(os.urandom(4), "little")
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = config.option.seed
    if hasattr(config, "workerinput"):  # one of several processes that run tests at once
        os.setpgrp()  # its orphans are recognized by their process group
    # The default until Python 3.14, which has forkserver: that pickles, and lambdas are no mistake.
    multiprocessing.set_start_method("fork", force=True)
    refuse_stale_extension()


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.option.seed} (replay with --seed {config.option.seed})"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None:
            stressed = "stress_seconds" in getattr(item, "fixturenames", ())
            extra_s = 10 * config.option.stress_seconds if stressed else 0
            item.add_marker(pytest.mark.timeout(TIMEOUT_S + extra_s))


def refuse_stale_extension() -> None:
    """
    Stop the run when the extension in this folder is older than a source of it.

    Raises:
        pytest.UsageError: The tests would run code that is not in the sources.
    """
    spec = importlib.util.find_spec("shmloader.core._core")
    if spec is None or spec.origin is None or ROOT not in Path(spec.origin).parents:
        return
    built_at = Path(spec.origin).stat().st_mtime
    for source in core_sources():
        if source.stat().st_mtime > built_at:
            raise pytest.UsageError(
                f"{source.relative_to(ROOT)} is newer than the built extension: run `make build`"
            )


def core_sources() -> Iterator[Path]:
    """List the files that `shmloader._core` is built from."""
    yield from (ROOT / "csrc").rglob("*.[ch]")
    for pattern in ("*.pyx", "*.pxd"):
        yield from (ROOT / "shmloader" / "core").glob(pattern)


@pytest.fixture
def stress_seconds(request: pytest.FixtureRequest) -> float:
    """How long a test of the kind "force" goes on, in seconds."""
    return request.config.option.stress_seconds


def pytest_collection_finish() -> None:
    """
    Take what is there before the first test out of the collector's sight.

    Modules and tests live to the end, and many tests collect: each time costs a second otherwise.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> int:
    """
    Seed every generator from the printed seed and the test's name: a test can be replayed alone.
    """
    seed = zlib.crc32(request.node.nodeid.encode(), request.config.option.seed) & 0xFFFFFFFF
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    return seed


@pytest.fixture
def forger() -> Iterator[Forger]:
    """A ledger and a desk in one process, with room for large batches."""
    pair = Forger(ring_bytes=1 << 28)
    yield pair
    pair.close()
