"""
Every kind of leaf and container: what torch delivers, what ours delivers, and how it travelled.

    python -m bench kinds
"""

import argparse
import sys
import warnings

import torch

from bench.report.machine import CHECKOUT
from shmloader import DataLoader


def main(arguments: list[str]) -> int:
    """Print the table of tests/torch/test_kinds.py; the exit code is 1 if any kind differs."""
    argparse.ArgumentParser(prog="python -m bench kinds", description=__doc__).parse_args(arguments)
    sys.path.insert(0, str(CHECKOUT))
    from tests.torch import test_kinds as table  # needs pytest and hypothesis, as the tests do

    warnings.simplefilter("ignore")
    print("| kind | torch | ours | verdict | way |")
    print("| --- | --- | --- | --- | --- |")
    kinds = {**table.NATIVE, **table.PICKLED}
    rows = [_row(table, name, make) for name, make in kinds.items()]
    return 0 if all(rows) else 1


def _row(table, name: str, make) -> bool:
    theirs, _, failure = _delivered(table, torch.utils.data.DataLoader, make)
    ours, loader, ours_failure = _delivered(table, DataLoader, make)
    if ours_failure:
        verdict, way = "MISSING", "-"
    else:
        way = "pickled" if loader.stats().pickled_batches else "native"
        verdict = _verdict(table, name, make, theirs, ours, failure)
        loader.close()
    print(f"| {name} | {failure or _outline(theirs)} | {ours_failure or _outline(ours)} ", end="")
    print(f"| {verdict} | {way} |", flush=True)
    return verdict in ("equal", "better")


def _delivered(table, loader_class: type, make) -> tuple:
    try:
        loader, (batch,) = table.deliver_all(loader_class, [make])
    except Exception as error:  # any error is the row's content
        return None, None, type(error).__name__
    return batch, loader, None


def _verdict(table, name: str, make, theirs, ours, failure: str | None) -> str:
    if not failure and equal(table, name, theirs, ours):
        return "equal"
    return "better" if name in table.BETTER and equal(table, name, make(), ours) else "DIFFERENT"


def equal(table, name: str, one, other) -> bool:
    if name == "bound method":
        return one(2) == other(2)
    if name == "image":
        return one.tobytes() == other.tobytes()
    try:
        table.assert_same(one, other)
    except (AssertionError, RuntimeError, AttributeError):
        return False
    return True


def _outline(value) -> str:
    if isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value.dtype}".replace("torch.", "")
    return f"{type(value).__name__} {getattr(value, 'dtype', '')}".strip().replace("|", "/")
