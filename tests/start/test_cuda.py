"""A server touches no accelerator, whatever the trainer has done with one; its workers may."""

import pytest

from tests.helpers.programs import run

# Read by each interpreter that starts: whatever asks for an accelerator is noted with its process.
NOTES = """
import os, sys

if "resource_tracker" not in " ".join(sys.orig_argv):
    import torch

    def noting(kind, name):
        call = getattr(kind, name)

        def noted(*arguments, **options):
            with open(os.environ["CUDA_NOTES"], "a") as notes:
                notes.write(f"{os.getpid()}\\n")
            return call(*arguments, **options)

        setattr(kind, name, noted)

    for kind, names in (
        (torch.cuda, ("init", "_lazy_init", "is_available", "device_count", "current_device")),
        (torch.accelerator, ("is_available", "current_accelerator", "device_count")),
        (torch._C, ("_cuda_init", "_cuda_getDeviceCount", "_cuda_getDevice")),
    ):
        for name in names:
            if hasattr(kind, name):
                noting(kind, name)
"""

PROGRAM = """
import os
import torch
from shmloader import DataLoader
from shmloader.processes.servers import servers


class Asking(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        torch.cuda.is_available()
        return torch.tensor([os.getpid(), torch.cuda._is_in_bad_fork()])


if __name__ == "__main__":
    torch.cuda.is_available()
    torch.cuda.manual_seed_all(3)
    options = dict(num_workers=2, multiprocessing_context="forkserver", preload=("torch.cuda",))
    batches = torch.cat(list(DataLoader(Asking(), **options)))
    noted = set(map(int, open(os.environ["CUDA_NOTES"])))
    (server,) = (each.process.pid for each in servers.processes())
    print(noted == {os.getpid(), *batches[:, 0].tolist()}, server in noted)
    print(batches[:, 1].tolist())
"""


@pytest.mark.thorough
def test_server_touches_no_accelerator(tmp_path, monkeypatch):
    """Nothing in it asks for one, so that each of its workers may."""
    (tmp_path / "sitecustomize.py").write_text(NOTES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    status, lines, errors = run(tmp_path, PROGRAM, CUDA_NOTES=str(tmp_path / "notes"))

    assert (0, ["True False", "[0, 0]"]) == (status, lines), errors
