"""
Documents packed into batches of a token budget, and a run that goes on in the middle of an epoch.

    python examples/packing.py

Documents and batch sampler are those of token_budget.py, `collate` makes a batch; the rest checks.

- A batch is one row of `BUDGET` tokens, whatever the lengths of its documents, so every step costs
  the same. Attention takes `starts`, which is what flash-attn calls cu_seqlens.
- `collate` fills tensors of `shmloader.empty`, which lie in the slot: tokens are copied once.
- The sampler has `state_dict()`, so the loader's state holds its epoch and its place. Nothing is
  fetched to get back there.
"""

from itertools import islice

import torch
from token_budget import Documents, TokenBudget

import shmloader

BUDGET = 4096
PADDING = 0


def collate(documents):
    """Lay documents one behind the other: tokens, positions, and where each document starts."""
    tokens = shmloader.empty(BUDGET, torch.int64).fill_(PADDING)
    positions = shmloader.empty(BUDGET, torch.int64).zero_()
    starts = shmloader.empty(len(documents) + 1, torch.int32)
    end = 0
    for number, document in enumerate(documents):
        start, end = end, end + len(document)
        starts[number] = start
        tokens[start:end] = document
        torch.arange(len(document), out=positions[start:end])
    starts[-1] = end
    return {"tokens": tokens, "positions": positions, "starts": starts}


def open_loader(documents, kind=shmloader.DataLoader, **options):
    """Make a loader with a sampler of its own."""
    packs = TokenBudget(documents.lengths, BUDGET, padded=False)
    return kind(documents, batch_sampler=packs, collate_fn=collate, num_workers=2, **options)


def rows_of(loader, most=None):
    return [batch["tokens"].tolist() for batch in islice(loader, most)]


def main():
    documents = Documents(2000, most=2000)
    with open_loader(documents, seed_by="batch") as loader:
        whole = rows_of(loader) + rows_of(loader)  # two epochs
    with open_loader(documents, seed_by="batch") as loader:
        first = rows_of(loader, 100)
        state = loader.state_dict()
    with open_loader(documents, seed_by="batch") as loader:  # in another process, on another day
        loader.load_state_dict(state)
        rest = rows_of(loader) + rows_of(loader)
    filled = sum(map(sum, ([token > 0 for token in row] for row in whole))) / len(whole) / BUDGET
    print(f"{len(whole)} batches, {filled:.1%} of their tokens are no padding")
    same = "the same" if whole == first + rest else "OTHERS"
    print(f"{len(first)} and {len(rest)} after a stop: {same}")


if __name__ == "__main__":
    main()
