"""How many type parameters torch's classes have matters to type checkers, and not at run time."""

import pytest

from tests.helpers import programs

# Classes of torch's name over torch's own, in a process in which nothing of ours is imported yet.
STAND_INS = """
from typing import Any, Generic, TypeVar
import torch.utils.data as data
import torch.utils.data.dataloader, torch.utils.data.dataset, torch.utils.data.sampler

A, B = TypeVar("A"), TypeVar("B")

def stand_in(kind):
    class Two(kind[A], Generic[A, B]): pass
    class Zero(kind[Any]): pass
    made = {"two": Two, "zero": Zero}[PARAMETERS]
    made.__name__ = made.__qualname__ = kind.__name__
    return made

for module, name in [
    (data.dataloader, "DataLoader"),
    (data.dataset, "Dataset"),
    (data.dataset, "IterableDataset"),
    (data.sampler, "Sampler"),
]:
    kind = stand_in(getattr(module, name))
    setattr(module, name, kind)
    setattr(data, name, kind)
"""

# Some commands need the packages of the extra, which need not be there.
PROGRAM = """
import importlib, pkgutil, warnings
import shmloader

for module in pkgutil.walk_packages(shmloader.__path__, "shmloader."):
    if not module.name.endswith(("__main__", "sitecustomize")):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name.partition(".")[0] != "shmloader", error

class Numbers(data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, index): return index

warnings.simplefilter("ignore")
print(shmloader.DataLoader[int].__origin__ is shmloader.DataLoader)
print(issubclass(shmloader.DataLoader, data.DataLoader))
forked = {"num_workers": 2, "multiprocessing_context": "fork"}
print([batch.tolist() for batch in shmloader.DataLoader(Numbers(), 3, **forked)])
"""


@pytest.mark.core(every=2)
@pytest.mark.parametrize("parameters", ["zero", "two"])
def test_torchs_classes_may_have_any_number(tmp_path, parameters):
    """Every module can be imported and a loader iterated, and ours has one parameter."""
    found = programs.run(tmp_path, f"PARAMETERS = {parameters!r}\n{STAND_INS}{PROGRAM}")

    assert (0, ["True", "True", "[[0, 1, 2], [3, 4, 5]]"], "") == found
