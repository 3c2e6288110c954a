"""Says what `make gpu` lacks on this machine, if anything."""

import sys
from importlib.util import find_spec

_MODULES = ("torch", "torchvision", "shmloader", "pytest", "pytest_timeout", "hypothesis")


def lacking() -> list[str]:
    """List what is missing, in words."""
    missing = [f"the module {name}" for name in _MODULES if find_spec(name) is None]
    if find_spec("torch"):
        import torch

        if not torch.cuda.is_available():
            missing.append("a GPU that torch finds")
    return missing


if __name__ == "__main__":
    if missing := lacking():
        sys.exit(f"make gpu lacks {', '.join(missing)} (Python: {sys.executable})")
