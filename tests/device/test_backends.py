"""The backends without their accelerators: what they ask of torch, and what they say."""

from types import SimpleNamespace

import pytest
import torch

from shmloader.device import backend as backend_module
from shmloader.device.backend import Backend, Cuda, backend_for


class Stream:
    """What is asked of a stream, in its order."""

    def __init__(self):
        self.asked = []

    def wait_event(self, event):
        self.asked.append(event)

    def record_event(self):
        return self


class Used:
    """A tensor that notes which streams use it."""

    def __init__(self):
        self.streams = []

    def record_stream(self, stream):
        self.streams.append(stream)


NUMBERS = {"stream_id": 7, "device_index": 1, "device_type": 12}


def cuda(monkeypatch):
    monkeypatch.setattr(backend_module, "_kept", {})
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
    return Cuda(torch.device("cpu"))


@pytest.mark.parametrize("kind", [Backend, Cuda])
def test_the_current_stream_waits_and_is_noted(monkeypatch, kind):
    """For the event alone, and each tensor is noted as used there."""
    current = Stream()
    module = torch.cuda if kind is Cuda else torch.accelerator
    monkeypatch.setattr(module, "current_stream", lambda device: current)
    backend = cuda(monkeypatch) if kind is Cuda else kind("cpu", Stream())
    tensors = [Used(), Used()]
    backend.wait("event", tensors)

    assert ["event"] == current.asked
    assert [[current], [current]] == [tensor.streams for tensor in tensors]


def test_all_iterators_copy_on_one_stream(monkeypatch):
    """Of each device: torch's allocator gives the memory of one stream to no other."""
    made = []
    monkeypatch.setattr(backend_module, "_kept", {})
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(device) or object())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    first, again, other = [Cuda(torch.device("cuda", index)) for index in (0, 0, 1)]
    assert first.copying() is again.copying() is not other.copying()
    assert [torch.device("cuda", 0), torch.device("cuda", 1)] == made


def test_an_object_of_its_own_for_the_kept_stream(monkeypatch):
    """Because a `with` block of torch.Stream keeps in it what was current before."""
    made = []

    def stream(*device, **known):
        made.append((device, known))
        return SimpleNamespace(**NUMBERS)

    monkeypatch.setattr(backend_module, "_kept", {})
    monkeypatch.setattr(torch, "Stream", stream)
    device = torch.device("xpu", 1)
    assert Backend(device).copying() is not Backend(device).copying()
    assert [((device,), {}), ((), NUMBERS), ((), NUMBERS)] == made


@pytest.mark.parametrize("kind", [Backend, Cuda])
def test_copies_follow_the_current_stream(monkeypatch, kind):
    """Where that is asked for: its mark is an event of the stream that is current then."""
    current, copies = Stream(), Stream()
    module = torch.cuda if kind is Cuda else torch.accelerator
    monkeypatch.setattr(module, "current_stream", lambda device: current)
    backend = cuda(monkeypatch) if kind is Cuda else kind("cpu", copies)
    backend.follow(backend.mark())
    assert [] == current.asked
    if kind is Backend:
        assert [current] == copies.asked


def test_the_accelerator_of_a_name(monkeypatch):
    """With the current index if none is given; another kind than there is is refused."""
    there = torch.device("xpu")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: there)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    monkeypatch.setattr(backend_module, "_kept", {})
    monkeypatch.setattr(torch, "Stream", lambda *_, **known: SimpleNamespace(**NUMBERS))
    assert torch.device("xpu", 3) == backend_for("xpu").device
    assert torch.device("xpu", 1) == backend_for("xpu:1").device
    assert Backend is type(backend_for("xpu"))
    with pytest.raises(ValueError, match='names an accelerator, but what is available is "xpu"'):
        backend_for("cuda")
    with pytest.raises(ValueError, match=r'"xpu:4" does not exist: what .* "xpu:0" to "xpu:3"$'):
        backend_for("xpu:4")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=r'"xpu:4" does not exist: what is available is "xpu:0"$'):
        backend_for("xpu:4")
