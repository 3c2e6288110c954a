"""Imports of what may not be installed: a test whose framework is missing is skipped by name."""

from __future__ import annotations

import importlib.metadata
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, *_ = [pytest.importorskip(module) for module in modules]
    return first


def version_of(distribution: str) -> str:
    return importlib.metadata.version(distribution)


# An operator lives as long as the library that defines it.
_STAND_INS: list[torch.library.Library] = []


def needs_torchvision() -> ModuleType:
    """
    Import torchvision, or skip the file.

    The published wheel's operators do not load beside a CPU build of torch, and without two of
    them the package does not import: stand-ins that no test calls take their places.
    """
    if not _STAND_INS and not has_operators("torchvision"):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _STAND_INS.append(library)
    try:
        return needs("torchvision")
    except (RuntimeError, AttributeError) as error:
        return pytest.skip(f"torchvision does not import here: {error}", allow_module_level=True)


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
