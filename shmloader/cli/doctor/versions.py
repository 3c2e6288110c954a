"""The check of versions."""

import platform
import re

import numpy
import torch

from shmloader.cli.doctor.finding import Finding

# The newest that were tried, as docs/versions.md says.
NEWEST_TORCH = (2, 15)
NEWEST_PYTHON = (3, 13)


def versions(
    of_torch: str = torch.__version__,
    of_numpy: str = numpy.__version__,
    of_python: str = platform.python_version(),
) -> Finding:
    """Compare versions, by default those that are imported here, with the newest ones tried."""
    fact = f"torch {of_torch}, numpy {of_numpy}, Python {of_python}"
    newer = [
        name
        for name, found, newest in (
            ("torch", of_torch, NEWEST_TORCH),
            ("Python", of_python, NEWEST_PYTHON),
        )
        if numbers(found)[:2] > newest
    ]
    if newer:
        remedy = (
            f"shmloader was not tested with this {' and '.join(newer)}: compare one epoch with "
            "torch's loader, by `shmloader run --compare`"
        )
        return Finding("versions", "note", fact, remedy)
    return Finding("versions", "ok", fact)


def numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers that a version begins with: (2, 11, 0) of 2.11.0a0+git1234."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()


def accelerator_here() -> str | None:
    """Return what torch calls the runtime of an accelerator that it can use now; None: none."""
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        return None
    return "hip" if device.type == "cuda" and torch.version.hip else device.type
