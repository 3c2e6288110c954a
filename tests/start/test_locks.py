"""Locks that another thread of the trainer holds while workers start."""

import pytest

# What a batch is unpickled by: its import takes long in the trainer, until a fork was made.
SLOWLY = """
import os, pathlib, time

if os.environ["TRAINER"] == str(os.getpid()):
    pathlib.Path("importing").touch()
    end_s = time.monotonic() + 20
    while not os.path.exists("forked") and time.monotonic() < end_s:
        time.sleep(0.005)


class Batch:
    def __init__(self, samples):
        self.samples = samples
"""

PROGRAM = """
import os, pathlib, signal, time
import torch

if not torch.accelerator.is_available():  # without one torch starts no thread
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda *_: torch.device("cuda")
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.set_device_index = lambda *_: None


def collate(samples):
    import slowly

    return slowly.Batch(samples)


def wait_for(name, longest_s):
    end_s = time.monotonic() + longest_s
    while not os.path.exists(name) and time.monotonic() < end_s:
        time.sleep(0.005)


def fork_and_import():
    child = os.fork()
    if child == 0:
        signal.alarm(3)
        import slowly

        os._exit(0)
    pathlib.Path("forked").touch()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    os.environ["TRAINER"] = str(os.getpid())
    options = dict(num_workers=1, collate_fn=collate, multiprocessing_context="fork")
    iterator = iter(DataLoader([7], pin_memory=True, **options))
    wait_for("importing", 3)
    print("hung" if fork_and_import() == -signal.SIGALRM else "went on")
    print(next(iterator).samples)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "outcome"), [("torch.utils.data", "hung"), ("shmloader", "went on")]
)
def test_fork_beside_a_loader_that_pins(run_program, tmp_path, module, outcome):
    """
    A child that is forked beside torch's loader, as the workers of a second one are, may hang.

    The thread that pins unpickles batches: here it imports their module meanwhile, whose lock the
    child has as it was, and no thread that would release it.
    """
    (tmp_path / "slowly.py").write_text(SLOWLY)
    status, lines, errors = run_program(f"from {module} import DataLoader\n{PROGRAM}")

    assert (0, [outcome, "[7]"]) == (status, lines), errors
