"""Imports of what may not be installed: a test whose framework is missing is skipped by name."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch


def needs(*modules: str) -> ModuleType:
    """
    Import a framework's modules, or skip the file.

    What a framework warns of while it is imported is no failure of ours.

    Returns:
        The first module.
    """
    stand_in_for_operators()
    with warnings.catch_warnings(action="ignore"):
        try:
            first, *_ = [pytest.importorskip(module) for module in modules]
        except RuntimeError as error:
            if "torchvision::" not in str(error):
                raise
            pytest.skip(f"torchvision does not import here: {error}", allow_module_level=True)
    return first


# An operator lives as long as the library that defines it.
_STAND_INS: list[torch.library.Library] = []


def stand_in_for_operators() -> None:
    """
    Let torchvision import beside a CPU build of torch, which its published operators do not load
    beside.

    Without two of them neither it nor what imports it, such as torchmetrics, can be imported;
    stand-ins that no test calls take their places.
    """
    if _STAND_INS or has_operators("torchvision"):
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _STAND_INS.append(library)


def has_operators(package: str) -> bool:
    """Returns True unless a package is installed whose compiled operators do not load."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    try:
        for library in (each for folder in folders or () for each in Path(folder).glob("_C*.so")):
            torch.ops.load_library(library)
    except OSError:
        return False
    return True
