"""`downloaded()` beside a dict: any calls, damage and new runs, with few bytes."""

import os
import shutil
import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shmloader import downloaded
from tests.data.test_downloads import BLOCK, file_of, files_in, taken_bytes

KEYS = st.integers(0, 12)


class Folder(RuleBasedStateMachine):
    """A folder that keeps four blocks or so; a value depends on its key alone."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.most_bytes = 4 * BLOCK
        self.asked = []
        self.calls = 0
        self.cache = downloaded(self.fetch, self.folder, self.most_bytes)

    def teardown(self):
        shutil.rmtree(self.folder)

    def fetch(self, key):
        self.asked.append(key)
        return self.value(key)

    @staticmethod
    def value(key):
        """Up to six blocks, so that some keys are never kept."""
        return bytes([key]) * (key * BLOCK // 2)

    @rule(key=KEYS)
    def call(self, key):
        """Returns the value, and fetches if and only if there is no whole file."""
        was_there = file_of(self.folder, key).exists()
        self.asked.clear()
        before = self.cache.stats()

        assert self.value(key) == self.cache(key)
        assert ([] if was_there else [key]) == self.asked
        hits, misses, _ = self.cache.stats()
        assert (was_there, not was_there) == (hits - before.hits, misses - before.misses)

    @rule(key=KEYS, place=st.integers(0, 30_000))
    def damage_and_call(self, key, place):
        """A file with one wrong byte is fetched again."""
        path = file_of(self.folder, key)
        if path.exists():
            raw = bytearray(path.read_bytes())
            raw[place % len(raw)] ^= 0x20
            # Not byte 20 to 23, which are padding: nothing reads them.
            if 20 <= place % len(raw) < 24:
                return
            path.write_bytes(raw)
            self.asked.clear()
            assert self.value(key) == self.cache(key)
            assert [key] == self.asked

    @rule(key=KEYS)
    def delete(self, key):
        """The user deletes a file."""
        file_of(self.folder, key).unlink(missing_ok=True)

    @rule(place=st.integers(0, 500))
    def damage_index(self, place):
        """A wrong byte anywhere in the index."""
        path = os.path.join(self.folder, "index")
        with open(path, "r+b") as file:
            raw = bytearray(file.read())
            if raw:
                raw[place % len(raw)] ^= 0x40
                file.seek(0)
                file.write(raw)

    @rule(blocks=st.integers(1, 8))
    def run_again(self, blocks):
        """Another run with the same folder, and other bytes."""
        self.most_bytes = blocks * BLOCK
        self.cache = downloaded(self.fetch, self.folder, self.most_bytes)
        assert taken_bytes(self.folder) <= self.most_bytes

    @invariant()
    def stays_within_its_bytes(self):
        """The files take at most what they may, and nothing is half written."""
        assert taken_bytes(self.folder) <= self.most_bytes
        assert [] == [path for path in files_in(self.folder) if path.suffix]


TestFolder = Folder.TestCase
TestFolder.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
