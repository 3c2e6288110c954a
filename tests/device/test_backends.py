"""The backends without their accelerators: what they ask of torch, and what they say."""

from types import SimpleNamespace

import pytest
import torch

from shmloader.trainer.device.backend import backend_for
from shmloader.trainer.device.cuda import Cuda
from shmloader.trainer.device.pinning import Pinning
from shmloader.trainer.device.streams import Streams


class Runtime:
    """The calls of torch.cuda.cudart() that are used; each fails with a status, or does not."""

    def __init__(self, status=0):
        self.status = status
        self.calls = []

    def cudaHostRegister(self, *arguments):
        self.calls.append(("register", *arguments))
        return self.status

    def cudaHostUnregister(self, *arguments):
        self.calls.append(("unregister", *arguments))
        return self.status

    def cudaGetErrorString(self, status):
        return f"error {status}"


class Stream:
    """What is asked of a stream, in its order."""

    def __init__(self):
        self.asked = []

    def wait_event(self, event):
        self.asked.append(event)


class Used:
    """A tensor that notes which streams use it."""

    def __init__(self):
        self.streams = []

    def record_stream(self, stream):
        self.streams.append(stream)


def cuda_with(runtime, monkeypatch):
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    return Cuda(torch.device("cpu"))


def test_cuda_registers_for_all_devices(monkeypatch):
    """With the flag that makes memory page-locked whichever device is current."""
    runtime = Runtime()
    backend = cuda_with(runtime, monkeypatch)
    backend.register(4096, 2 << 20)
    backend.unregister(4096)

    assert [("register", 4096, 2 << 20, 1), ("unregister", 4096)] == runtime.calls


def test_a_refusal_is_in_the_runtimes_words_and_leaves_no_error(monkeypatch):
    """A kernel that is started next is not blamed for it."""
    asked = []
    backend = cuda_with(Runtime(status=2), monkeypatch)
    monkeypatch.setattr(torch, "zeros", lambda *size, device: asked.append(device))
    with pytest.raises(RuntimeError, match="cudaHostRegister: error 2"):
        backend.register(4096, 4096)
    with pytest.raises(RuntimeError, match="cudaHostUnregister: error 2"):
        backend.unregister(4096)
    assert [backend.device] * 2 == asked


@pytest.mark.parametrize("kind", [Streams, Cuda])
def test_the_current_stream_waits_and_is_noted(monkeypatch, kind):
    """For the event alone, and each tensor is noted as used there."""
    current = Stream()
    module = torch.cuda if kind is Cuda else torch.accelerator
    monkeypatch.setattr(module, "current_stream", lambda device: current)
    backend = cuda_with(Runtime(), monkeypatch) if kind is Cuda else kind("cpu", Stream())
    tensors = [Used(), Used()]
    backend.wait("event", tensors)

    assert ["event"] == current.asked
    assert [[current], [current]] == [tensor.streams for tensor in tensors]


def test_other_accelerators_register_nothing():
    """Their batches go through pinned memory."""
    backend = Pinning(torch.device("xpu", 0), Stream())
    assert not backend.registers
    for call in (lambda: backend.register(0, 1), lambda: backend.unregister(0)):
        with pytest.raises(RuntimeError, match="xpu registers no memory"):
            call()


def test_the_accelerator_of_a_name(monkeypatch):
    """With the current index if none is given; another kind than there is is refused."""
    there = torch.device("xpu")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: there)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    monkeypatch.setattr(torch, "Stream", lambda device: SimpleNamespace(device=device))
    assert torch.device("xpu", 3) == backend_for("xpu").device
    assert torch.device("xpu", 1) == backend_for("xpu:1").device
    assert Pinning is type(backend_for("xpu"))
    with pytest.raises(ValueError, match='names an accelerator, but what is available is "xpu"'):
        backend_for("cuda")
