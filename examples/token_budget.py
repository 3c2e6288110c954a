"""
Batches of a token budget for several ranks: as many steps on each, and as much work in each step.

    python examples/token_budget.py

`TokenBudget` is a batch sampler, to copy; the rest here measures and checks it. It needs no more
than the lengths, and numpy.

- Documents are sorted into classes of nearly equal length, shuffled within each, and cut into
  batches; so little is padded. Or, without padding, long ones are put beside short ones that fit.
  Which class has which place is the same in each epoch, and so is `len()`.
- A step is as many neighbouring batches as there are ranks. Batches are shuffled in groups of
  neighbours, so that the ranks of a step have nearly the same to do, whatever their number is.
- `state_dict()` is two numbers, the epoch and how many batches all ranks have drawn. So another
  number of ranks goes on with the rest: load the same loader's state on each of them.
"""

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

import shmloader

_WIDTH = 0.02  # of a class of lengths, as a part of its longest: what is padded at most
_GROUP = 64  # batches that stay together when they are shuffled
_CHUNK = 1 << 22  # lengths that are sorted at once, for the sake of memory


class TokenBudget(Sampler):
    """
    Lists of documents of at most so many tokens.

    Args:
        lengths: Of all documents, as a list or an array of ints.
        tokens: In a batch.
        padded: A batch takes its longest document's length for each; False: they are packed, one
            behind the other.
        shuffle: Draw an order for each epoch.
        rank, world_size: Which batches of a step are drawn; None: those of torch.distributed, or
            all of them without it.
        drop_last: Leave out the last step if it has not a batch for each rank; False: its last
            batch is repeated.

    Raises:
        ValueError: There is a document of more than tokens, or of less than one.
    """

    def __init__(
        self, lengths, tokens=8192, padded=True, shuffle=True, seed=0, rank=None, world_size=None,
        drop_last=False,
    ):  # fmt: skip
        self.lengths = np.asarray(lengths)
        if self.lengths.size and not 1 <= self.lengths.min() <= self.lengths.max() <= tokens:
            raise ValueError(
                f"lengths are {self.lengths.min()} to {self.lengths.max()}: a batch has room for "
                f"documents of 1 to {tokens} tokens"
            )
        is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if world_size is None:
            world_size = torch.distributed.get_world_size() if is_distributed else 1
        if rank is None:
            rank = torch.distributed.get_rank() if is_distributed else 0
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        self.tokens, self.padded, self.shuffle, self.seed = tokens, padded, shuffle, seed
        self.rank, self.world_size, self.drop_last = rank, world_size, drop_last
        self.epoch, self.drawn, self._is_resumed = 0, 0, False
        self._longest = _classes(tokens)
        self._class_of = np.zeros(tokens + 1, np.uint16)  # by length
        self._class_of[self._longest[:-1] + 1] = 1
        self._class_of = self._class_of.cumsum(dtype=np.uint16)
        self._counts = np.zeros(len(self._longest), np.int64)
        for at in range(0, len(self.lengths), _CHUNK):
            found = self._class_of[self.lengths[at : at + _CHUNK]]
            self._counts += np.bincount(found, minlength=len(self._counts))
        self._places = None  # of documents, among those that are sorted; None: they are in order
        if padded:
            self._ends = self._cut()
        else:
            self._places, self._ends = self._pack()

    def _cut(self):
        """Cut the documents, in the order of their classes, into batches. Returns their ends."""
        ends, first, at = [], 0, 0  # the batch in hand begins with the first
        for longest, count in zip(self._longest.tolist(), self._counts.tolist(), strict=True):
            end = at + count
            while at < end:
                fits = self.tokens // longest - (at - first)
                if fits <= 0:  # the batch in hand is full
                    ends.append([at])
                    first = at
                elif first == at and end - at > fits:  # many whole ones
                    whole = (end - at) // fits
                    ends.append(at + fits * np.arange(1, whole + 1))
                    at = first = at + whole * fits
                else:
                    at += min(fits, end - at)
        return np.concatenate([*ends, [at] if at > first else []]).astype(np.int64)

    def _pack(self):
        """
        Fill batches with the longest documents that fit, as many alike at once as there are.

        Returns:
            The documents' places among those that are sorted, and the ends of batches.
        """
        left, next_ones = self._counts.copy(), self._counts.cumsum() - self._counts
        places, sizes = [np.empty(0, np.uint32)], [np.empty(0, np.int64)]
        while left.any():
            batch, room, kind = {}, self.tokens, len(left) - 1
            while kind >= 0:
                if count := min(int(left[kind]), room // int(self._longest[kind])):
                    batch[kind] = count
                    room -= count * int(self._longest[kind])
                kind = min(kind, int(np.searchsorted(self._longest, room, "right"))) - 1
            alike = min(int(left[kind]) // count for kind, count in batch.items())
            rows = []
            for kind, count in batch.items():
                taken = np.arange(alike * count, dtype=np.uint32).reshape(alike, count)
                rows.append(taken + np.uint32(next_ones[kind]))
                left[kind] -= alike * count
                next_ones[kind] += alike * count
            places.append(np.hstack(rows).ravel())
            sizes.append(np.full(alike, sum(batch.values())))
        return np.concatenate(places), np.concatenate(sizes).cumsum()

    def __len__(self):
        """Count the steps of an epoch, the same on all ranks and in all epochs."""
        return self._steps(len(self._ends))

    def _steps(self, batches):
        return batches // self.world_size if self.drop_last else -(-batches // self.world_size)

    def set_epoch(self, epoch):
        """As of DistributedSampler; without it epochs are counted."""
        if epoch != self.epoch or not self._is_resumed:
            self.epoch, self.drawn = epoch, 0

    def __iter__(self):
        if not self._is_resumed and self.drawn > 0:
            self.epoch, self.drawn = self.epoch + 1, 0  # the last one was left before its end
        self._is_resumed = False
        return self._rest()

    def _rest(self):
        """Yield what of this epoch was not drawn yet, for this rank."""
        order, batches = self._documents(), self._batches()
        if self._places is not None:
            order = order[self._places]
        starts = np.concatenate([[0], self._ends[:-1]])
        for _ in range(self._steps(len(batches) - self.drawn)):
            mine = batches[min(self.drawn + self.rank, len(batches) - 1)]
            self.drawn += self.world_size
            yield order[starts[mine] : self._ends[mine]].tolist()
        self.epoch, self.drawn = self.epoch + 1, 0

    def _batches(self):
        """Draw the order of an epoch's batches: groups of neighbours, and the last one is short."""
        count = len(self._ends)
        if not self.shuffle:
            return np.arange(count)
        generator = np.random.default_rng((self.seed, self.epoch, 1))
        groups = generator.permutation(-(-count // _GROUP))
        batches = (groups[:, None] * _GROUP + np.arange(_GROUP)).ravel()
        return batches[batches < count]

    def _documents(self):
        """Draw the order of an epoch's documents: by their classes, in any order within each."""
        ends = self._counts.cumsum()
        order, free = np.empty(len(self.lengths), np.uint32), ends - self._counts
        for at in range(0, len(self.lengths), _CHUNK):
            found = self._class_of[self.lengths[at : at + _CHUNK]]
            by_class = np.argsort(found, kind="stable").astype(np.uint32)
            counts = np.bincount(found, minlength=len(free))
            before = np.repeat(free - (counts.cumsum() - counts), counts)
            order[before + np.arange(len(found))] = by_class + np.uint32(at)
            free = free + counts
        if self.shuffle:
            generator = np.random.default_rng((self.seed, self.epoch, 0))
            for first, end in zip((ends - self._counts).tolist(), ends.tolist(), strict=True):
                generator.shuffle(order[first:end])
        return order

    def state_dict(self):
        return {"epoch": self.epoch, "drawn": self.drawn}

    def load_state_dict(self, state):
        self.epoch, self.drawn, self._is_resumed = state["epoch"], state["drawn"], True


def _classes(most):
    """The longest length of each class, in order."""
    longest = [1]
    while longest[-1] < most:
        longest.append(min(most, max(longest[-1] + 1, int(longest[-1] * (1 + _WIDTH)))))
    return np.array(longest)


class Documents(Dataset):
    """Documents of log-normal lengths, each made of its number: a real one's tokens are read."""

    def __init__(self, count, most=8192, seed=0):
        drawn = np.random.default_rng(seed).lognormal(6.0, 1.0, count)
        self.lengths = drawn.clip(1, most).astype(np.int32)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.full((int(self.lengths[index]),), index + 1)


def padded(documents):
    """Collate documents into one tensor, zeros behind the shorter ones."""
    rows = shmloader.empty((len(documents), max(map(len, documents))), torch.int64).zero_()
    for row, document in zip(rows, documents, strict=True):
        row[: len(document)] = document
    return rows


def wasted(lengths, batches):
    """The part of all tokens that is padding."""
    taken = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    return 1 - sum(int(lengths[batch].sum()) for batch in batches) / taken


def imbalance(lengths, ranks):
    """The mean over the steps of the largest rank's tokens over the mean rank's."""
    steps = [[lengths[batch].sum() for batch in step] for step in zip(*ranks, strict=True)]
    return float(np.mean([max(step) / np.mean(step) for step in steps]))


def batched(order, size):
    """As torch's BatchSampler."""
    return [order[at : at + size] for at in range(0, len(order), size)]


def by_length_in_megabatches(lengths, size, world_size, seed=0):
    """As transformers' `group_by_length`: 50 random batches are sorted together."""
    order = np.random.default_rng(seed).permutation(len(lengths))
    parts = batched(order, 50 * size * world_size)
    return batched(np.concatenate([part[np.argsort(-lengths[part])] for part in parts]), size)


def main():
    documents, ranks = Documents(100_000), 8
    lengths = documents.lengths
    size = int(8192 / lengths.mean())  # documents in a batch of about so many tokens
    ours = [[*TokenBudget(lengths, rank=rank, world_size=ranks)] for rank in range(ranks)]
    at_random = batched(np.random.default_rng(0).permutation(len(lengths)), size)
    grouped = by_length_in_megabatches(lengths, size, ranks)
    print("| batches | padding | largest rank's tokens over the mean |")
    print("| --- | ---: | ---: |")
    for name, batches in (
        ("torch, shuffled", at_random),
        ("transformers, group_by_length", grouped),
        ("TokenBudget", [batch for step in zip(*ours, strict=True) for batch in step]),
    ):
        whole = batches[: len(batches) // ranks * ranks]
        of_ranks = [whole[rank::ranks] for rank in range(ranks)]
        print(f"| {name} | {wasted(lengths, batches):.1%} | {imbalance(lengths, of_ranks):.3f} |")

    few = Documents(3000)
    sampler = TokenBudget(few.lengths)
    options = {"batch_sampler": sampler, "collate_fn": padded, "num_workers": 2}
    with shmloader.DataLoader(few, **options) as loader:
        tokens = sum(batch.numel() for batch in loader)
    print(f"{len(sampler)} batches of {tokens / len(sampler):.0f} tokens, padding included")


if __name__ == "__main__":
    main()
