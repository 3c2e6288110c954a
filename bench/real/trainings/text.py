"""Texts of different lengths, padded by a collate function, and a convolution over embeddings."""

from pathlib import Path

import numpy
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from bench.loads.pools import pad_tokens
from bench.real.training import WORKERS, Training, draws

_BATCH = 64
_TEXTS = 4000
_WORDS = 8000
_CLASSES = 4
_PADDING, _UNKNOWN = 0, 1

Sample = tuple[torch.Tensor, int]


class Texts(Dataset):
    """
    Tokens drawn beforehand; a fetch drops a tenth of them.

    A sample is tokens (16 to 256,) int64 and label, an int.
    """

    def __init__(self) -> None:
        lengths = torch.randint(16, 257, (_TEXTS,)).tolist()
        # One tensor: each one is a descriptor on its way to a worker that is not forked.
        self._tokens = torch.cat([torch.randint(2, _WORDS, (length,)) for length in lengths])
        self._ends = numpy.cumsum(lengths)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Sample:
        start = self._ends[index - 1] if index else 0
        text = self._tokens[start : self._ends[index]]
        dropped = torch.rand(len(text)) < 0.1
        return text.masked_fill(dropped, _UNKNOWN), index % _CLASSES


class Net(torch.nn.Module):
    """Embeddings, a convolution over five of them, and the largest answer of each filter."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(_WORDS, 16, padding_idx=_PADDING)
        self.convolution = torch.nn.Conv1d(16, 16, 5, padding=2)
        self.head = torch.nn.Linear(16, _CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Classify tokens (B, T): (B, 4)."""
        return self.head(self.convolution(self.embedding(tokens).mT).amax(2))


def make(_: Path, steps: int) -> Training:
    """Make the training."""
    dataset = Texts()
    sampler = draws(dataset, steps * _BATCH)
    loader = DataLoader(dataset, _BATCH, sampler=sampler, collate_fn=pad_tokens, **WORKERS)
    return Training(loader, Net(), _loss)


def _loss(net: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(net(batch["input_ids"]), batch["labels"])
