"""
Another checkout's shmloader, beside this one's in the same run: `python -m bench --before PATH`.

Everything but the package is this checkout's; run.py puts the other package first.
"""

from importlib.util import find_spec
from pathlib import Path

from bench.contenders import ours
from bench.report.machine import CHECKOUT

label = "before"
make_loader = ours.make_loader


def available() -> str | None:
    """Say why this contender cannot run here, or None: the package has to be another checkout's."""
    package = find_spec("shmloader")
    if package and Path(package.origin).resolve().is_relative_to(CHECKOUT):
        return "this is this checkout's shmloader: `python -m bench --before PATH` names another"
    return ours.available()
