"""The replay buffer in examples/: whole rows, none too old; over TorchRL's storage too."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.segments import in_slots

from .shims import example

SHAPES = {"frame": ((4, 4), torch.uint8), "action": ((), torch.int64)}


@pytest.fixture
def replay():
    return example("replay")


def rows(first, count):
    numbers = torch.arange(first, first + count)
    return {"frame": (numbers % 251).to(torch.uint8)[:, None, None].expand(count, 4, 4),
            "action": numbers}  # fmt: skip


def test_no_row_is_older_than_the_buffer(replay):
    """A drawn row is among those that are still there when its batch arrives."""
    buffer = replay.Replay(replay.Rows(128, SHAPES), 128)
    buffer.add(rows(0, 128))
    with replay.open_loader(buffer, 16, 4) as loader:
        for _, batch in zip(range(100), loader, strict=False):
            assert int(batch["action"].min()) >= buffer.added - buffer.size
            buffer.add(rows(buffer.added, 4))


def test_draws_repeat(replay):
    """The same seed draws the same rows."""

    def actions():
        buffer = replay.Replay(replay.Rows(64, SHAPES), 64)
        buffer.add(rows(0, 64))
        with replay.open_loader(buffer, 8, 0, seed=5) as loader:
            return [batch["action"].tolist() for _, batch in zip(range(5), loader, strict=False)]

    assert actions() == actions()


def test_over_torchrls_storage(replay, tmp_path):
    """A storage of TorchRL takes the place of Rows: its TensorDicts lie in the slot."""
    torchrl = pytest.importorskip("torchrl.data")
    tensordict = pytest.importorskip("tensordict")
    storage = torchrl.LazyMemmapStorage(64, scratch_dir=str(tmp_path))
    storage.set(torch.arange(64), tensordict.TensorDict(rows(0, 64), batch_size=[64]))
    buffer = replay.Replay(storage, 64)
    buffer.added = 64
    with replay.open_loader(buffer, 8, 0) as loader:
        for _, batch in zip(range(5), loader, strict=False):
            assert all(in_slots([batch["frame"]]))
            assert torch.equal(batch["frame"][:, 0, 0].long(), batch["action"])


def test_the_program_says_that_it_is_right(replay):
    """Run as its user runs it, every row is whole."""
    right, of = replay.play(60)

    assert (60 * 64, 60 * 64) == (right, of)
