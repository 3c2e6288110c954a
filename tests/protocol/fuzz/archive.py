"""
The kept inputs: one archive for each fuzzer, so that they are three files instead of a thousand.
"""

import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "corpus"
NAMES = ("ledger", "layout", "records")


def read(name):
    """Read a fuzzer's kept inputs: name -> bytes."""
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as archive:
        return {entry: archive.read(entry) for entry in archive.namelist()}


def write(name, inputs):
    """
    Keep these inputs, in the order of their names and without dates: equal inputs, equal archive.
    """
    FOLDER.mkdir(exist_ok=True)
    with zipfile.ZipFile(FOLDER / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, data in sorted(inputs.items()):
            archive.writestr(zipfile.ZipInfo(entry), data, zipfile.ZIP_DEFLATED)
