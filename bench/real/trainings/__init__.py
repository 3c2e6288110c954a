"""
The trainings, in the order of the table, a module each.

A module has `make(folder, steps)`, which returns a `Training` whose loader is of the class that the
users of its package write. It is imported only to train, because its packages may be missing.
"""

import importlib
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from bench.real.training import Training

_PHOTOGRAPHS = {"PIL": "pillow", "skimage": "scikit-image"}  # the latter ships them


@dataclass(frozen=True)
class Spec:
    """
    What is known of a training before it is imported.

    Args:
        packages: The modules that must be installed, each with the name of its distribution.
        pictures: The folder that `make` gets must hold JPEG files, by label.
    """

    title: str
    steps: int
    packages: dict[str, str] = field(default_factory=dict)
    pictures: bool = False

    def why_not(self) -> str | None:
        """Say which packages are missing, or None."""
        missing = [name for module, name in self.packages.items() if not find_spec(module)]
        return f"needs {', '.join(missing)}" if missing else None


TRAININGS = {
    "jpegs": Spec(
        "32 JPEGs of 400 × 300, cropped to 224 by Pillow; a small CNN",
        70,
        _PHOTOGRAPHS,
        pictures=True,
    ),
    "image_folder": Spec(
        "the same by torchvision's ImageFolder and v2 transforms; the same CNN",
        70,
        {"torchvision": "torchvision", **_PHOTOGRAPHS},
        pictures=True,
    ),
    "text": Spec("64 texts of 16 to 256 tokens, padded by a collate_fn; a convolution", 700),
    "graphs": Spec(
        "64 graphs by PyG; two graph convolutions", 700, {"torch_geometric": "torch-geometric"}
    ),
    "patches": Spec(
        "4 × 2 patches of 48³ of cached scans by MONAI; a small 3-D net", 60, {"monai": "monai"}
    ),
}


def make(name: str, folder: Path, steps: int) -> Training:
    """Make a training whose epochs have so many steps."""
    return importlib.import_module(f"{__name__}.{name}").make(folder, steps)
