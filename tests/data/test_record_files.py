"""Files of a `SharedList`: written whole or not at all, opened at once, checked before use."""

import contextlib
import os
import pickle
import struct
import zlib

import numpy
import pytest
import torch

from shmloader import SharedList
from shmloader.core import DamagedRecord
from shmloader.data import record_file

# What bytes that nobody has written may raise.
ERRORS = (ValueError, TypeError, RecursionError, MemoryError, ImportError, AttributeError)
RECORDS = [{"name": f"n{number}", "x": numpy.arange(number)} for number in range(50)]


def names_of(records):
    return [record["name"] for record in records]


def rewrite(path, change):
    raw = bytearray(path.read_bytes())
    change(raw)
    path.write_bytes(raw)


def mended(raw):
    """Give a changed header a right checksum."""
    size = record_file._HEADER.size
    struct.pack_into("=I", raw, size, zlib.crc32(raw[:size]))


@pytest.fixture
def path(tmp_path):
    with SharedList(RECORDS) as records:
        records.to_file(tmp_path / "records")
    return tmp_path / "records"


def test_a_file_holds_the_list(path):
    """What was written is read, and the file is the only one in its folder."""
    with SharedList.from_file(path) as records:
        assert names_of(RECORDS) == names_of(records)
        numpy.testing.assert_array_equal(RECORDS[49]["x"], records[49]["x"])
        assert f"MB in {path}>" in repr(records)
    assert [path.name] == os.listdir(path.parent)


def test_a_slice_has_a_file_of_its_own(path, tmp_path):
    """Only its records are written, in its order."""
    with SharedList.from_file(path) as records:
        records[10:4:-2].to_file(tmp_path / "part")
    with SharedList.from_file(tmp_path / "part") as part:
        assert names_of(RECORDS[10:4:-2]) == names_of(part)
        assert len(part) == part._file.count


def test_packing_writes_no_memory(tmp_path):
    """Records of any iterator go straight into the file, with progress."""
    told = []
    with SharedList.pack(
        iter(RECORDS), tmp_path / "f", progress=lambda *numbers: told.append(numbers)
    ) as records:
        assert names_of(RECORDS) == names_of(records)
        assert (50, os.path.getsize(tmp_path / "f")) == told[-1]


def test_a_folder_is_packed(tmp_path):
    """Each file is a record of its path below the folder and its bytes, in the order of names."""
    for name, content in {"b/2": b"two", "b/1": b"one", "a": b"", "c/d/e.jpg": b"\0" * 9}.items():
        file = tmp_path / "folder" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    with SharedList.pack_folder(tmp_path / "folder", tmp_path / "packed") as records:
        assert [("a", b""), ("b/1", b"one"), ("b/2", b"two"), ("c/d/e.jpg", b"\0" * 9)] == records
    with pytest.raises(FileNotFoundError):
        SharedList.pack_folder(tmp_path / "nowhere", tmp_path / "other")
    assert {"folder", "packed"} == set(os.listdir(tmp_path))


def test_a_failure_leaves_the_old_file(path):
    """An iterator that raises, or an object without a pickle, changes nothing on the disk."""
    before = path.read_bytes()

    def records():
        yield 1
        raise KeyError("mine")

    with pytest.raises(KeyError):
        SharedList.pack(records(), path)
    assert before == path.read_bytes()
    assert [path.name] == os.listdir(path.parent)


def test_a_replaced_file_stays_for_those_who_read_it(path):
    """A list that was opened before has the old records."""
    with SharedList.from_file(path) as old, SharedList.pack(["new"], path) as new:
        assert names_of(RECORDS) == names_of(old)
        assert ["new"] == new


def test_writes_do_not_reach_the_file(path):
    """A leaf may be written to, and the disk has what was packed."""
    before = path.read_bytes()
    with SharedList.from_file(path) as records:
        records[49]["x"][:] = 7
        assert 7 == records[49]["x"][3]
    assert before == path.read_bytes()


def test_another_file_is_refused(path):
    """By its first bytes; an empty one and a folder too."""
    path.write_bytes(b"PK\3\4" + bytes(500))
    with pytest.raises(ValueError, match=r"is not a file of a SharedList: it begins with b'PK"):
        SharedList.from_file(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="it begins with b''"):
        SharedList.from_file(path)
    with pytest.raises(OSError):
        SharedList.from_file(path.parent)
    with pytest.raises(FileNotFoundError):
        SharedList.from_file(path.parent / "nothing")


@pytest.mark.parametrize("length", [50, 128, 1000, -1, None])
def test_a_file_that_was_cut_off_is_refused(path, length):
    """With both lengths; so is one that grew."""
    raw = path.read_bytes()
    raw = raw + b"x" if length is None else raw[:length]
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=rf"{len(raw)}"):
        SharedList.from_file(path)


def test_another_version_is_refused(path):
    """By number, before anything else of it is read; so is a machine of the other byte order."""

    def newer(raw):
        struct.pack_into("=I", raw, 8, 3)
        mended(raw)

    def turned(raw):
        raw[12:16] = raw[12:16][::-1]

    rewrite(path, newer)
    with pytest.raises(ValueError, match="is of version 3, and this shmloader reads version 2"):
        SharedList.from_file(path)
    rewrite(path, turned)
    with pytest.raises(ValueError, match="was written on a machine that is not"):
        SharedList.from_file(path)


@pytest.mark.parametrize("at", [16, 24, 32, 40, 48, 60, 66])
def test_a_damaged_header_is_refused(path, at):
    """A flipped bit in any of its fields."""

    def flip(raw):
        raw[at] ^= 1

    rewrite(path, flip)
    with pytest.raises(ValueError, match="its header does not match its checksum"):
        SharedList.from_file(path)


def test_damaged_names_table_and_index_are_refused(path):
    """Each is compared with its checksum: names and table at the start, the index at its use."""
    raw = path.read_bytes()
    fields = record_file._HEADER.unpack_from(raw)
    _, _, _, _, _, names_at, _, _, table_at, _ = fields

    def flip(at):
        changed = bytearray(raw)
        changed[at] ^= 4
        path.write_bytes(changed)

    flip(names_at + 3)
    with pytest.raises(ValueError, match="its names do not match their checksum"):
        SharedList.from_file(path)
    flip(table_at)
    with pytest.raises(ValueError, match="its table does not match its checksum"):
        SharedList.from_file(path)
    flip(names_at - 16)
    with (
        SharedList.from_file(path) as records,
        pytest.raises(ValueError, match="its index does not match its checksum"),
    ):
        records[0]


@pytest.mark.parametrize("field", ["records", "names_at", "names_bytes", "table_at"])
@pytest.mark.parametrize("value", [0, 3, 2**31, 2**62, 2**63 - 1])
def test_forged_headers_are_refused(path, field, value):
    """Numbers that a checksum covers and that lead beyond the file raise, and crash nothing."""
    descriptor = os.open(path, os.O_RDONLY)
    header = record_file.read_header(descriptor, "f")._replace(**{field: value})
    os.close(descriptor)
    raw = bytearray(path.read_bytes())
    raw[:128] = header.pack()
    path.write_bytes(raw)
    with contextlib.suppress(*ERRORS), SharedList.from_file(path) as records:
        list(records)


def test_a_damaged_record_is_named(path):
    """The error has the file and the record's number; the others are read."""

    def damage(raw):
        start = raw.index(b"n7")
        raw[start - 8 : start + 2] = b"\xff" * 10

    rewrite(path, damage)
    with SharedList.from_file(path) as records:
        with pytest.raises(ValueError, match=rf"{path} is damaged: in record [67], ") as caught:
            records[6], records[7]
        assert not isinstance(caught.value, DamagedRecord)
        assert "n20" == records[20]["name"]


def test_it_pickles_as_its_path(path):
    """Anywhere; a slice stays one, and another file of that name is refused."""
    with SharedList.from_file(path) as records:
        pickled = pickle.dumps((records, records[5:]))
    again, part = pickle.loads(pickled)
    with again:
        assert names_of(RECORDS) == names_of(again)
        assert names_of(RECORDS[5:]) == names_of(part)
        assert again._file is part._file
    SharedList.pack(["other"], path).close()
    with pytest.raises(ValueError, match="is another file than the one"):
        pickle.loads(pickled)


def test_relative_paths(path, monkeypatch):
    """A list that was opened by a relative path pickles as an absolute one."""
    monkeypatch.chdir(path.parent)
    with SharedList.from_file("records") as records:
        pickled = pickle.dumps(records)
    monkeypatch.chdir("/")
    with pickle.loads(pickled) as arrived:
        assert 50 == len(arrived)


def test_a_full_disk_is_an_error(path, monkeypatch):
    """The error of the disk comes through, and the old file stays."""
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record_file.os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        SharedList.pack([torch.zeros(10_000_000)], path)
    monkeypatch.undo()
    assert before == path.read_bytes()
    assert [path.name] == os.listdir(path.parent)
