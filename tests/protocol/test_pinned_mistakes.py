"""Mistakes planted in csrc/ where slots wait for devices, one at a time: each is found."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent / "c"
CSRC = HERE.parents[2] / "csrc"

# What is wrong: the file, what stands there, and what would.
MISTAKES = {
    "a slot is free when it is dropped": (
        "ledger.c",
        "if (ledger->entries[slot].is_for_devices) make_fenced",
        "if (false) make_fenced",
    ),
    "an event covers slots that were dropped behind it": (
        "ledger.c",
        "entry->fence = ledger->fences.next;",
        "entry->fence = ledger->fences.next - (ledger->fences.count > 0);",
    ),
    "a fenced slot is marked for a child": (
        "ledger.c",
        "entry->state != SLOT_LEASED || marks[slot]",
        "(entry->state != SLOT_LEASED && entry->state != SLOT_FENCED) || marks[slot]",
    ),
    "a fence that fails frees its slots": (
        "pinned.c",
        "if (answer == 0) ledger_end_fence",
        "if (answer == 0 || answer > 0) ledger_end_fence",
    ),
    "the segment is unmapped while it is locked": (
        "pinned.c",
        "atomic_fetch_add_explicit(&ledger->references, 1",
        "atomic_fetch_add_explicit(&ledger->references, 0",
    ),
    "a lock that was refused is noted": (
        "pinned.c",
        "set_locked(ledger, slot, error == 0 ? range->bytes : 0);",
        "set_locked(ledger, slot, range->bytes);",
    ),
    "a slot is locked again before it is unlocked": (
        "pinned.c",
        "  if (range->is_locked) {\n    int error",
        "  if (false) {\n    int error",
    ),
    "it is recorded in a capture": (
        "driver.c",
        "driver_is_capturing() ? -EBUSY : record_all(fence)",
        "record_all(fence)",
    ),
    "it is locked in a capture": (
        "driver.c",
        "  int error = driver_is_capturing() ? -EBUSY : push_any();\n"
        "  if (error == 0) {\n"
        "    int mode = driver_exchange_mode(DRIVER_RELAXED);\n"
        "    error = cuda.cuMemHostRegister",
        "  int error = push_any();\n"
        "  if (error == 0) {\n"
        "    int mode = driver_exchange_mode(DRIVER_RELAXED);\n"
        "    error = cuda.cuMemHostRegister",
    ),
    "an event is asked in a mode that a capture minds": (
        "driver.c",
        "int mode = driver_exchange_mode(DRIVER_RELAXED);\n  int error = ask_all",
        "int mode = driver_exchange_mode(0);\n  int error = ask_all",
    ),
}

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is missing")


def built(folder: Path) -> Path:
    """Build the ladder over the sources in a folder, with what changed since the last time."""
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    command = ["make", "-j2", f"core={folder / 'csrc'}", f"build={folder / 'build'}"]
    command += ["PROGRAMS=ladder_pinned", "CFLAGS=-O0 -g", "all"]
    subprocess.run(command, cwd=HERE, env=environment, check=True, timeout=300)
    return folder / "build" / "ladder_pinned"


def passes(program: Path) -> bool:
    return subprocess.run([program], capture_output=True, timeout=60).returncode == 0


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_each_is_found(tmp_path):
    """By the ladder that passes without it."""
    shutil.copytree(CSRC, tmp_path / "csrc")
    assert passes(built(tmp_path))
    missed = []
    for what, (name, right, wrong) in MISTAKES.items():
        path = tmp_path / "csrc" / name
        source = path.read_text()
        assert 1 == source.count(right), what
        path.write_text(source.replace(right, wrong))
        if passes(built(tmp_path)):
            missed.append(what)
        path.write_text(source)

    assert [] == missed
