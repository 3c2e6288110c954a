"""JPEGs as datasets: decoded each time, kept by each worker for itself, or copied from memory."""

import torch
from torch.utils.data import Dataset

from bench.questions.streaming.pictures import decode, make_jpegs

DISTINCT = 64
SHAPE = (224, 224, 3)
PICTURE_BYTES = 224 * 224 * 3


class Decoded(Dataset):
    """Pictures (224, 224, 3) uint8, decoded at each access, and their numbers."""

    def __init__(self, count: int):
        self.jpegs = make_jpegs(DISTINCT)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return decode(self.jpegs[index % DISTINCT]), index


class KeptByEach(Decoded):
    """The same, in a dictionary that each process has for itself: what is often done."""

    def __init__(self, count: int):
        super().__init__(count)
        self.kept: dict[int, tuple[torch.Tensor, int]] = {}

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index not in self.kept:
            self.kept[index] = super().__getitem__(index)
        return self.kept[index]


class Copied(Dataset):
    """The same pictures, decoded before and copied from one tensor that all processes share."""

    def __init__(self, count: int):
        decoded = Decoded(count)
        distinct = torch.stack([decoded[number][0] for number in range(DISTINCT)])
        self.memory = torch.empty((count, *SHAPE), dtype=torch.uint8).share_memory_()
        for start in range(0, count, DISTINCT):
            part = self.memory[start : start + DISTINCT]
            part.copy_(distinct[: len(part)])

    def __len__(self) -> int:
        return len(self.memory)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.memory[index].clone(), index
