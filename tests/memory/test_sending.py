"""Batches that go on to another process."""

from tests.helpers.programs import run

PROGRAM = """
import torch
import torch.multiprocessing as multiprocessing
from shmloader import DataLoader
from torch.utils.data import TensorDataset


def first_of(queue, answers, done):
    answers.put(queue.get().tolist())
    done.wait(20)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    queue, answers, done = context.Queue(), context.Queue(), context.Event()
    child = context.Process(target=first_of, args=(queue, answers, done))
    child.start()
    loader = DataLoader(TensorDataset(torch.arange(800.0)), batch_size=8, num_workers=2)
    batches = iter(loader)
    (batch,) = next(batches)
    alias, before = batch.numpy(), batch.tolist()
    address = batch.data_ptr()
    queue.put(batch)
    assert before == answers.get(timeout=20)
    for _ in batches:
        pass
    assert before == alias.tolist() == batch.tolist()
    assert address == batch.data_ptr()
    done.set()
    child.join()
    print("same")
"""


def test_sent_batch_keeps_its_aliases(tmp_path):
    """A batch that is sent arrives, and its aliases here are unchanged."""
    status, lines, errors = run(tmp_path, PROGRAM)

    assert (0, ["same"], "") == (status, lines, errors)
