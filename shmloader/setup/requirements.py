"""
What has to be there before the rest is imported: the compiled module, and Linux for it.

On another system, and in a wheel that was built without the compiled module, torch's loader serves
in place of slots. What is only a mistake is one clear ImportError: a checkout that was not built,
and a folder that was copied to another Python. This file runs before any other module of the
package.
"""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
CORE = "shmloader.core._core"


def lacking() -> str | None:
    """Say why there are no slots of shared memory here; None: there are."""
    # Without memfd, futex and /proc nothing was ever tested.
    if sys.platform != "linux":
        return f"this is {sys.platform}, and shared-memory slots need Linux"
    folder = PACKAGE / "core"  # where others will import the compiled module from
    if importlib.machinery.PathFinder.find_spec(CORE, [str(folder)]) is not None:
        return None
    others = [path.name for path in folder.glob("_core*.so")]
    if not others and not _is_checkout():
        return f"shmloader was installed without its compiled module, {CORE}"
    elsewhere = ", or start Python in another folder, if it is installed" if _is_checkout() else ""
    raise ImportError(
        f"shmloader needs its compiled module, {CORE}, for {sys.implementation.cache_tag} "
        f"(found in {folder}: {', '.join(sorted(others)) or 'none'}): {installation()}{elsewhere}",
        name=CORE,
    )


def installation() -> str:
    """Returns the pip command that installs this package, from its sources if it lies in them."""
    if _is_checkout():
        return f"pip install {PACKAGE.parent}"
    return "pip install --force-reinstall --no-deps shmloader"


def absent(what: str) -> ImportError:
    """Make the error of a name that needs the compiled module."""
    return ImportError(f"{what} is not available: {LACKING}", name="shmloader")


def _is_checkout() -> bool:
    return (PACKAGE.parent / "setup.py").exists()


LACKING = lacking()
