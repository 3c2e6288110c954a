"""
A stage of a pipeline that calls a function in processes, in order, and can be resumed.

    python examples/ordered_stage.py

Pipelines such as Grain's and torchtitan's are iterators over iterators, whose state says how far
they are. `Stage` is one of them: what it has taken from the stage above and not handed on does not
count as done, so `get_state()` is exact however many calls are under way. SPDL takes the pool
itself: `PipelineBuilder().pipe(tokenise, executor=pool, concurrency=2)`.

The workers need numpy alone: no torch tensor is made here.
"""

import numpy

from shmloader import Pool


class Documents:
    """The stage above: documents of a corpus, and how many were taken."""

    def __init__(self, count):
        self.count, self.taken = count, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.taken == self.count:
            raise StopIteration
        self.taken += 1
        return f"document {self.taken} " * (self.taken % 7 + 1)

    def get_state(self):
        """Say how far it is."""
        return {"taken": self.taken}

    def set_state(self, state):
        """Go on from there."""
        self.taken = state["taken"]


class Stage:
    """Calls a function with what the stage above yields, `ahead` items at a time."""

    def __init__(self, above, function, pool, ahead=8):
        self._above, self._function, self._pool, self._ahead = above, function, pool, ahead
        self._before = []  # the states of the stage above before what is under way
        self._results = None

    def __iter__(self):
        return self

    def __next__(self):
        if self._results is None:
            self._results = self._pool.map(self._function, self._items(), buffersize=self._ahead)
        result = next(self._results)
        del self._before[0]
        return result

    def _items(self):
        while True:
            state = self._above.get_state()
            try:
                item = next(self._above)
            except StopIteration:
                return
            self._before.append(state)
            yield item

    def get_state(self):
        """Say how far what was handed on is."""
        return self._before[0] if self._before else self._above.get_state()

    def set_state(self, state):
        """Go on from there: what is under way is given up."""
        self._results, self._before = None, []
        self._above.set_state(state)


def tokenise(text):
    """Make tokens of a document: an array (T,) of int64."""
    return numpy.frombuffer(text.encode(), numpy.uint8).astype(numpy.int64)


def main():
    """Break a run off, and compare what comes after it with an undisturbed one."""
    with Pool(2) as pool:
        undisturbed = list(Stage(Documents(100), tokenise, pool))
        stage = Stage(Documents(100), tokenise, pool)
        first = [next(stage) for _ in range(37)]
        state = stage.get_state()
        resumed = Stage(Documents(100), tokenise, pool)
        resumed.set_state(state)
        again = [*first, *resumed]
        assert state == {"taken": 37} and len(again) == len(undisturbed)
        assert all(map(numpy.array_equal, undisturbed, again)), "the resumed run differs"
        print(f"{len(again)} documents, resumed after {len(first)}, all right")


if __name__ == "__main__":
    main()
