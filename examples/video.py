"""
Clips of videos, decoded in workers that keep their decoders: `python examples/video.py`.

`Clips` is the dataset, `Decoders` the decoders that a worker keeps; the rest here makes videos and
checks the frames.

- To open a video and to seek cost more than to decode some frames on. A worker keeps the decoders
  of the videos that it used last, and one that stands before a clip goes on from there.
- Frames are decoded into a tensor of `shmloader.empty`: the clip lies in the slot, as uint8. Make
  floats of it behind the loader, where it is a quarter of the bytes to move until then.
- Decoders are opened in the worker, never in the trainer: a forked child must not share one.

The format here is one that this file reads and writes, so that nothing has to be installed: a
keyframe, then differences, each packed by zlib. With PyAV, `AvVideo` takes the place of `Video`.
"""

import struct
import tempfile
import zlib
from collections import OrderedDict
from pathlib import Path

import numpy
import torch
from torch.utils.data import Dataset

import shmloader

HEAD = struct.Struct("<4I")  # frames, height, width, frames from one keyframe to the next


def write(path, frames, every=12):
    """Write (frames, height, width, 3) uint8 as a video."""
    packed = [
        zlib.compress((frame if number % every == 0 else frame - frames[number - 1]).tobytes(), 1)
        for number, frame in enumerate(frames)
    ]
    with open(path, "wb") as file:
        file.write(HEAD.pack(*frames.shape[:3], every))
        file.write(numpy.cumsum([0, *map(len, packed)], dtype="<u8").tobytes())
        file.writelines(packed)


class Video:
    """A decoder that stands behind a frame."""

    def __init__(self, path):
        self.file = open(path, "rb")  # noqa: SIM115
        self.count, height, width, self.every = HEAD.unpack(self.file.read(HEAD.size))
        self.ends = numpy.frombuffer(self.file.read(8 * (self.count + 1)), "<u8")
        self.start = self.file.tell()
        self.frame = numpy.zeros((height, width, 3), numpy.uint8)
        self.next = 0
        self.decoded = 0

    @property
    def shape(self):
        return self.frame.shape

    def read(self, number):
        """Decode frame `number`, from where the decoder stands, or from its keyframe."""
        key = number - number % self.every
        if not key < self.next <= number + 1:
            self.next = key
        while self.next <= number:
            self.step()
        return self.frame

    def step(self):
        begin, end = self.ends[self.next : self.next + 2].tolist()
        self.file.seek(self.start + begin)
        raw = numpy.frombuffer(zlib.decompress(self.file.read(end - begin)), numpy.uint8)
        if self.next % self.every == 0:
            self.frame[:] = 0
        self.frame += raw.reshape(self.frame.shape)
        self.next += 1
        self.decoded += 1

    def close(self):
        self.file.close()


class AvVideo:
    """The same over PyAV, for files of any codec: frames are counted from the start."""

    def __init__(self, path):
        import av

        self.container = av.open(str(path))
        self.stream = self.container.streams.video[0]
        self.shape = (self.stream.height, self.stream.width, 3)
        self.count = self.stream.frames
        self.frames, self.at, self.frame = None, -1, None

    def read(self, number):
        if self.frames is None or number < self.at or number > self.at + 50:
            self.seek(number)
        while self.at < number:
            self.frame = next(self.frames)
            self.at = round(float(self.frame.time * self.stream.average_rate))
        return self.frame.to_ndarray(format="rgb24")

    def seek(self, number):
        seconds = number / self.stream.average_rate
        self.container.seek(int(seconds / self.stream.time_base), stream=self.stream)
        self.frames, self.at = self.container.decode(self.stream), -1

    def close(self):
        self.container.close()


class Decoders:
    """The decoders that were used last, at most so many."""

    def __init__(self, most, kind=Video):
        self.most, self.kind = most, kind
        self.opened = OrderedDict()

    def get(self, path):
        if path in self.opened:
            self.opened.move_to_end(path)
            return self.opened[path]
        if len(self.opened) == self.most:
            self.opened.popitem(last=False)[1].close()
        return self.opened.setdefault(path, self.kind(path))


class Clips(Dataset):
    """
    Clips of `length` frames, one in `stride`.

    Args:
        clips: The path and the first frame of each.
    """

    def __init__(self, clips, length=16, stride=2, decoders=8, kind=Video):
        self.clips, self.length, self.stride = clips, length, stride
        self.decoders = Decoders(decoders, kind)  # empty until a worker opens one

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        """Decode a batch, (clips, frames, height, width, 3), where the slot is."""
        path, _ = self.clips[indices[0]]
        shape = (len(indices), self.length, *self.decoders.get(path).shape)
        batch = shmloader.empty(shape, torch.uint8)
        for clip, index in zip(batch.numpy(), indices, strict=True):
            path, first = self.clips[index]
            video = self.decoders.get(path)
            for turn, frame in enumerate(clip):
                frame[:] = video.read(first + turn * self.stride)
        return batch


def as_it_is(batch):
    """Collate nothing: the dataset made a batch."""
    return batch


def frames_of(video, count=96, height=64, width=96):
    """Make the frames of a video: a square moves over a ramp, and all of it tells which video."""
    frames = numpy.empty((count, height, width, 3), numpy.uint8)
    frames[:] = numpy.arange(width, dtype=numpy.uint8)[:, None] + 16 * video
    for number, frame in enumerate(frames):
        top, left = number % (height - 16), number % (width - 16)
        frame[top : top + 16, left : left + 16] = 255 - number
    return frames


def main():
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.video" for number in range(8)]
        films = [frames_of(number) for number in range(len(paths))]
        for path, film in zip(paths, films, strict=True):
            write(path, film)
        clips = [(path, first) for path in paths for first in range(0, 65, 8)]
        wanted = [film[first : first + 32 : 2] for film in films for first in range(0, 65, 8)]
        with shmloader.DataLoader(
            Clips(clips), batch_size=6, num_workers=2, collate_fn=as_it_is
        ) as loader:
            seen = [clip for batch in loader for clip in batch.numpy()]
    right = sum(numpy.array_equal(*pair) for pair in zip(wanted, seen, strict=True))
    print(f"{right} of {len(wanted)} clips are right")


if __name__ == "__main__":
    main()
