"""The clips in examples/: right frames, decoders that are kept in each worker and never shared."""

from __future__ import annotations

import numpy
import pytest
import torch

import shmloader
from tests.helpers.segments import in_slots

from .shims import example


@pytest.fixture
def video():
    return example("video")


@pytest.fixture
def films(video, tmp_path):
    """Write three videos. Returns (path, frames) of each."""
    made = []
    for number in range(3):
        frames = video.frames_of(number, count=60, height=24, width=32)
        video.write(tmp_path / f"{number}.video", frames)
        made.append((tmp_path / f"{number}.video", frames))
    return made


def test_clips_lie_in_slots(video, films):
    """Clips of a shuffled epoch are right, uint8, and in the slot; the trainer opens no decoder."""
    clips = [(path, first) for path, _ in films for first in range(0, 29, 4)]
    wanted = [frames[first : first + 32 : 2] for _, frames in films for first in range(0, 29, 4)]
    dataset = video.Clips(clips, decoders=2)
    with shmloader.DataLoader(
        dataset, batch_size=4, num_workers=2, collate_fn=video.as_it_is, shuffle=True,
        generator=torch.Generator().manual_seed(3),
    ) as loader:  # fmt: skip
        seen = []
        for batch in loader:
            assert torch.uint8 == batch.dtype
            assert all(in_slots([batch]))
            seen.extend(batch.numpy().copy())
        assert 0 == loader.stats().spilled
    assert len(wanted) == len(seen)
    for clip in seen:
        assert sum(numpy.array_equal(clip, each) for each in wanted) == 1
    assert not dataset.decoders.opened


def test_pyavs_decoder(video, tmp_path):
    """With PyAV the same frames come in any order as from its start to its end."""
    av = pytest.importorskip("av")
    path = tmp_path / "film.mkv"
    frames = video.frames_of(1, count=40, height=32, width=48)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "bgr0"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    decoder = video.AvVideo(path)
    assert (32, 48, 3) == decoder.shape
    for number in (0, 1, 5, 30, 31, 2, 39):
        assert numpy.array_equal(frames[number], decoder.read(number))
    decoder.close()


def test_the_program_says_that_it_is_right(video, capsys):
    """Run as its user runs it, every clip is right."""
    video.main()

    assert "72 of 72 clips are right" in capsys.readouterr().out
