"""
What has to be there before the rest is imported, and one clear ImportError for each that is not.

pip sees to all of it. What gets past pip was installed with --no-deps, replaced later, copied from
the folder of another Python, or is a checkout that was not built. The versions come from the
package's own metadata, so pyproject.toml is the only place that names them. This file must compile
on older Pythons too, and it runs before any other module of the package.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import re
import sys
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parent
CORE = "shmloader.core._core"


class Requirement(NamedTuple):
    """A package of the metadata's list, imported by the name under which it is installed."""

    name: str
    least: str

    def __str__(self) -> str:
        return f"{self.name}>={self.least}"

    def is_missing(self) -> bool:
        """Returns True if there is nothing to import; imports nothing."""
        return self.name not in sys.modules and importlib.util.find_spec(self.name) is None

    def is_too_old(self) -> bool:
        """Returns True if the version that is imported here is below the least one."""
        return not self.is_said_to_do() and numbers(self.found()) < numbers(self.least)

    def is_said_to_do(self) -> bool:
        """
        Returns True if the metadata beside a package, not imported yet, says that it is new enough.

        That saves seconds. Where it does not say so, the package itself is asked: what lies beside
        it may be left of another version.
        """
        spec = None if self.name in sys.modules else importlib.util.find_spec(self.name)
        if spec is None or spec.origin is None:
            return False
        beside = str(Path(spec.origin).parents[1])
        said = metadata.distributions(name=self.name, path=[beside])
        versions = [numbers(each.version) for each in said]
        return bool(versions) and min(versions) >= numbers(self.least)

    def found(self) -> str:
        """Returns the version of what is imported, "none" if there is nothing to import."""
        if self.is_missing():
            return "none"
        return str(getattr(importlib.import_module(self.name), "__version__", "no version"))


def check() -> None:
    """
    Look for everything that this package needs, cheapest first.

    Raises:
        ImportError: Something is missing or too old; the text says what was found and what to do.
    """
    check_system()
    ours = read_metadata()
    check_python(ours["Requires-Python"])
    check_packages(requirements_in(ours.get_all("Requires-Dist") or []))
    check_core()


def check_system() -> None:
    """Refuse systems without memfd, futex and /proc, on which nothing was ever tested."""
    if sys.platform != "linux":
        raise ImportError(
            f"shmloader needs Linux, and this is {sys.platform}: pip install shmloader on a Linux "
            "machine, in a container or in WSL 2",
            name="shmloader",
        )


def read_metadata() -> metadata.PackageMetadata:
    """Read what pyproject.toml says of this package, as it was installed."""
    try:
        return metadata.metadata("shmloader")
    except metadata.PackageNotFoundError:
        raise ImportError(
            f"shmloader in {PACKAGE} was not installed, its metadata is missing: {installation()}",
            name="shmloader",
        ) from None


def check_python(requirement: str) -> None:
    """Compare this interpreter with the metadata's Requires-Python, such as ">=3.11"."""
    least = requirement.lstrip(">= ")
    if sys.version_info[:2] < numbers(least):
        found = ".".join(map(str, sys.version_info[:3]))
        raise ImportError(
            f"shmloader needs Python {least} or later, and this is Python {found}: "
            f"python{least} -m pip install shmloader",
            name="shmloader",
        )


def check_packages(requirements: list[Requirement]) -> None:
    """
    Find the packages of the list, and import those whose metadata does not say enough.

    If one is missing none is imported: torch without numpy prints a warning that explains nothing.
    """
    unmet = [each for each in requirements if each.is_missing()]
    # Only the first, and numpy before torch: its import may fail because of an old numpy.
    unmet = unmet or list(islice(filter(Requirement.is_too_old, sorted(requirements)), 1))
    if unmet:
        needed = " and ".join(f"{each} (found: {each.found()})" for each in unmet)
        command = " ".join(f"'{each}'" for each in unmet)
        raise ImportError(f"shmloader needs {needed}: pip install {command}", name=unmet[0].name)


def check_core() -> None:
    """Look for the compiled module, where others will import it from."""
    folder = PACKAGE / "core"
    if importlib.machinery.PathFinder.find_spec(CORE, [str(folder)]) is not None:
        return
    others = [path.name for path in folder.glob("_core*.so")]
    raise ImportError(
        f"shmloader needs its compiled module, {CORE}, for {sys.implementation.cache_tag} "
        f"(found in {folder}: {', '.join(sorted(others)) or 'none'}): {installation()}",
        name=CORE,
    )


def requirements_in(lines: list[str]) -> list[Requirement]:
    """Parse the metadata's Requires-Dist; what only an extra needs has a marker behind ";"."""
    pattern = re.compile(r"(?P<name>[\w.-]+) *>= *(?P<least>[\d.]+)")
    matches = [pattern.fullmatch(line) for line in lines if ";" not in line]
    return [Requirement(match["name"], match["least"]) for match in matches if match]


def installation() -> str:
    """Returns the pip command that installs this package, from its sources if it lies in them."""
    if (PACKAGE.parent / "setup.py").exists():
        return f"pip install {PACKAGE.parent}"
    return "pip install --force-reinstall --no-deps shmloader"


def numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers that a version begins with: (2, 11, 0) of 2.11.0a0+git1234."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()
