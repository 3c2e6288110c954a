"""
What has to be there before the rest is imported, and one clear ImportError for each that is not.

pip sees to the rest. What it does not see is a system that is not Linux, a checkout that was not
built, and a folder that was copied to another Python. This file runs before any other module of the
package.
"""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent
CORE = "shmloader.core._core"


def check() -> None:
    """Look for what pip does not see to."""
    # Without memfd, futex and /proc nothing was ever tested.
    if sys.platform != "linux":
        raise ImportError(
            f"shmloader needs Linux, and this is {sys.platform}: pip install shmloader on a Linux "
            "machine, in a container or in WSL 2",
            name="shmloader",
        )
    folder = PACKAGE / "core"  # where others will import the compiled module from
    if importlib.machinery.PathFinder.find_spec(CORE, [str(folder)]) is not None:
        return
    others = [path.name for path in folder.glob("_core*.so")]
    raise ImportError(
        f"shmloader needs its compiled module, {CORE}, for {sys.implementation.cache_tag} "
        f"(found in {folder}: {', '.join(sorted(others)) or 'none'}): {installation()}",
        name=CORE,
    )


def installation() -> str:
    """Returns the pip command that installs this package, from its sources if it lies in them."""
    if (PACKAGE.parent / "setup.py").exists():
        return f"pip install {PACKAGE.parent}"
    return "pip install --force-reinstall --no-deps shmloader"
