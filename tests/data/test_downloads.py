"""`downloaded()`: what it returns, keeps, counts, refuses, and does when the disk fails."""

import os
import resource
import shutil
import warnings
import zlib
from pathlib import Path

import numpy
import pytest
import torch
from torch.utils.data import Dataset

from shmloader import DataLoader, downloaded
from shmloader.data import index
from shmloader.data.downloads import name_of

BLOCK = 4096
ROOM = 1 << 20


def value_of(key):
    """A value that differs for all keys of a test, of several lengths."""
    return repr(key).encode() * (1 + zlib.crc32(repr(key).encode()) % 300)


class Source:
    """Fetches, and notes for what."""

    def __init__(self, fetch=value_of):
        self.fetch = fetch
        self.asked = []

    def __call__(self, key):
        self.asked.append(key)
        return self.fetch(key)


def files_in(folder):
    """List the files of values, whole ones and others."""
    return sorted(path for path in Path(folder).glob("[0-9a-f][0-9a-f]/*"))


def taken_bytes(folder):
    """Sum what the files of values take in blocks."""
    return sum(-(-path.stat().st_size // BLOCK) * BLOCK for path in files_in(folder))


def file_of(folder, key):
    name = name_of(key)
    return Path(folder) / name[:2] / name[2:]


@pytest.mark.parametrize("key", ["a/b.jpg", "", "ü\udc80", b"\x00\xff", 0, -5, 2**70, True])
def test_a_value_is_fetched_once(tmp_path, key):
    """A key of each type is fetched the first time and read the second time."""
    source = Source(lambda key: b"value")
    cache = downloaded(source, tmp_path, ROOM)

    assert [b"value", b"value"] == [cache(key), cache(key)]
    assert [key] == source.asked


def test_keys_of_different_types_are_different(tmp_path):
    """The text, the bytes and the number 1 have a value each."""
    cache = downloaded(lambda key: repr(key).encode(), tmp_path, ROOM)

    assert [b"1", b"'1'", b"b'1'", b"1"] == [cache(key) for key in (1, "1", b"1", numpy.int64(1))]


@pytest.mark.parametrize("length", [0, 1, BLOCK - 24, BLOCK - 23, 3_000_000])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_values_of_any_length(tmp_path, length, kind):
    """A value comes back as bytes, whatever its length and its kind of buffer."""
    value = os.urandom(length)
    cache = downloaded(lambda key: kind(value), tmp_path, 1 << 23)

    assert [value, value] == [cache("k"), cache("k")]
    assert {bytes} == {type(cache("k"))}


# What becomes of a file's bytes; another is a whole file, but that of another key.
DAMAGES = {
    "cut": lambda raw, another: raw[:-1],
    "grown": lambda raw, another: raw + b"x",
    "emptied": lambda raw, another: b"",
    "another": lambda raw, another: another,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_fetched_again(tmp_path, damage):
    """A damaged file is never returned, and replaced by what is fetched."""
    source = Source()
    cache = downloaded(source, tmp_path, ROOM)
    cache("key"), cache("another")
    path, another = file_of(tmp_path, "key"), file_of(tmp_path, "another")
    path.write_bytes(DAMAGES[damage](path.read_bytes(), another.read_bytes()))

    assert [value_of("key")] * 2 == [cache("key"), cache("key")]
    assert ["key", "another", "key"] == source.asked


def test_an_index_of_another_boot_is_made_anew(tmp_path, monkeypatch):
    """After a crash of the system the files count, not what the index kept of them."""
    downloaded(value_of, tmp_path, ROOM)(1)
    lost = file_of(tmp_path, 2)
    lost.parent.mkdir()
    shutil.copy(file_of(tmp_path, 1), lost)
    monkeypatch.setattr(index, "_boot", lambda: b"b" * 36)

    assert taken_bytes(tmp_path) == downloaded(value_of, tmp_path, ROOM).stats().bytes


def test_the_oldest_of_earlier_runs_give_way(tmp_path):
    """A run deletes the oldest of what it has not used, and keeps what it has."""
    before = downloaded(lambda key: b"x" * BLOCK, tmp_path, 20 * BLOCK)
    for key in range(10):
        before(key)
    source = Source(lambda key: b"x" * BLOCK)
    cache = downloaded(source, tmp_path, 20 * BLOCK)
    cache(0)
    for key in range(10, 14):
        cache(key)

    assert [True, *[False] * 4, *[True] * 5] == [
        file_of(tmp_path, key).exists() for key in range(10)
    ]


def test_an_epoch_larger_than_the_folder_finds_most_of_it(tmp_path):
    """Values that are asked for in turn are not all deleted before their next turn."""
    cache = downloaded(lambda key: b"x" * BLOCK, tmp_path, 400 * BLOCK)
    found = []
    for _ in range(3):
        before = cache.stats().hits
        for key in range(400):
            cache(key)
        found.append(cache.stats().hits - before)

    assert 0 == found[0]
    assert all(150 <= hits <= 200 for hits in found[1:])  # 200 have room


def test_other_data_take_the_place_of_what_this_run_has_used(tmp_path):
    """In the end new keys are kept, even if the old ones were of the same run."""
    source = Source(lambda key: b"x" * BLOCK)
    cache = downloaded(source, tmp_path, 20 * BLOCK)
    for key in range(10):
        cache(key)
    for _ in range(30):
        for key in range(100, 105):
            cache(key)
    source.asked.clear()
    for key in range(100, 105):
        cache(key)

    assert [] == source.asked


def test_the_index_stays_short(tmp_path, monkeypatch):
    """Records of deleted values leave the index's file."""
    monkeypatch.setattr(index, "_COMPACT_AFTER", 8)
    for run in range(60):
        downloaded(lambda key: b"x" * BLOCK, tmp_path, 6 * BLOCK)(run)

    assert (tmp_path / "index").stat().st_size < 1000
    assert 3 == len(files_in(tmp_path))


@pytest.mark.parametrize("error", [KeyError("no such"), SystemExit(3), StopIteration()])
def test_errors_of_fetch_pass_through(tmp_path, error):
    """The very exception arrives, nothing is kept, and the next call fetches."""

    def fail(key):
        raise error

    cache = downloaded(fail, tmp_path, ROOM)
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            cache("key")
        assert raised.value is error
    assert (0, 0, 0) == cache.stats()


@pytest.mark.parametrize("value", ["text", None, 3])
def test_what_is_no_bytes_is_refused(tmp_path, value):
    """The error names the type and the key."""
    cache = downloaded(lambda key: value, tmp_path, ROOM)

    with pytest.raises(TypeError, match=rf"{type(value).__name__} for the key 'k', not bytes"):
        cache("k")


@pytest.mark.parametrize("key", [None, 1.5, ("a", 1)])
def test_other_keys_are_refused(tmp_path, key):
    """The error says what a key can be."""
    with pytest.raises(TypeError, match="give a str, bytes or an int"):
        downloaded(value_of, tmp_path, ROOM)(key)


def test_a_limit_of_nothing_is_refused(tmp_path):
    """max_bytes is a whole number, at least 1."""
    with pytest.raises(TypeError, match=r"max_bytes should be an int, but got 1\.5"):
        downloaded(value_of, tmp_path, 1.5)
    with pytest.raises(ValueError, match="max_bytes should be at least 1"):
        downloaded(value_of, tmp_path, 0)


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    """The error comes at once and names the folder."""
    (tmp_path / "taken").write_text("")

    with pytest.raises(FileExistsError, match=r"folder for downloads cannot be used.*taken"):
        downloaded(value_of, tmp_path / "taken", ROOM)


def test_a_full_disk_warns_once(tmp_path):
    """Values are fetched and returned as before, with one warning that says what to do."""
    cache = downloaded(lambda key: bytes(200_000), tmp_path, 1 << 22)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with warnings.catch_warnings(record=True, action="always") as caught:
            assert [bytes(200_000)] * 3 == [cache(key) for key in (1, 2, 2)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert [__file__] == [each.filename for each in caught]
    assert "cannot be stored in" in str(caught[0].message)
    assert [] == files_in(tmp_path)
    assert (0, 3) == cache.stats()[:2]


def test_a_lock_that_is_not_given_stops_nobody(tmp_path, monkeypatch):
    """A process that holds the lock and is stopped costs the others the keeping alone."""
    from shmloader.data import shelf

    monkeypatch.setattr(shelf, "_PATIENCE_S", 0.05)
    cache = downloaded(value_of, tmp_path, ROOM)
    with cache._shelf._locked(1.0):
        assert [value_of(1)] * 2 == [cache(1), cache(1)]
    assert value_of(1) == cache(1)
    assert 1 == len(files_in(tmp_path))


def test_counts_are_swept(tmp_path):
    """A run's file of counts goes with its object; those that runs left go after a week."""
    cache = downloaded(value_of, tmp_path, ROOM)
    cache(1)
    left = tmp_path / "counts.left"
    left.write_bytes(b"")
    os.utime(left, (1, 1))
    assert 2 == len([*tmp_path.glob("counts.*")])

    other = downloaded(value_of, tmp_path, ROOM)
    del cache

    assert 1 == len([*tmp_path.glob("counts.*")])
    assert (0, 0) == other.stats()[:2]


class Values(Dataset):
    """Samples are the lengths of downloaded values."""

    def __init__(self, folder):
        self.cache = downloaded(value_of, folder, ROOM)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor(len(self.cache(index)))


@pytest.mark.thorough
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_share_values_and_counts(tmp_path, context):
    """The second epoch reads what the workers of the first have fetched, and all is counted."""
    dataset = Values(tmp_path)
    loader = DataLoader(
        dataset,
        batch_size=4,
        num_workers=2,
        multiprocessing_context=context,
        persistent_workers=context == "spawn",  # each start imports torch
        fetch_threads=3,
    )
    lengths = [torch.cat(list(loader)).tolist() for _ in range(2)]
    loader.close()

    assert [[len(value_of(index)) for index in range(24)]] * 2 == lengths
    assert (24, 24) == dataset.cache.stats()[:2]
