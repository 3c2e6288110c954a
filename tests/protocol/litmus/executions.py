"""
Every execution of a few threads of a few accesses that C11's memory model allows.

The model is RC11 (Lahav, Vafeiadis, Kang, Hur and Dreyer, "Repairing Sequential Consistency in
C/C++11", PLDI 2017) without fences, with the release sequences of C++20, and without its last
axiom: values out of thin air are allowed here, and with them the reordering of a load with a later
store, which ARM and POWER do and the axiom forbids. More is allowed here than by RC11, so what
holds here holds there. A candidate is a way through each thread, a write for each read, and an
order of the writes to each word; it is an execution if

    happens-before followed by at most one chain of reads-from, modification order and reads-before
        leads no access back to itself (coherence),
    an update reads from the write just before it in modification order (atomicity),
    the sequentially consistent accesses have an order (psc).

Two accesses to one word that are not ordered by happens-before, one of them a write and one of them
not atomic, are a data race, for which the language promises nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

RELEASES = {"release", "acq_rel", "seq_cst"}
ACQUIRES = {"acquire", "acq_rel", "seq_cst"}


@dataclass(frozen=True)
class Access:
    """
    One access of a thread.

    Attributes:
        order: The memory order's name; "plain" if it is not atomic.
        read: The value that it reads; None for a store.
        written: The value that it writes; None for a load.
    """

    thread: int
    word: str
    order: str
    read: int | None = None
    written: int | None = None


@dataclass(frozen=True)
class Way:
    """A way through a thread: its accesses in program order, and its registers at the end."""

    accesses: tuple[Access, ...]
    registers: dict[str, int] = field(hash=False)


# What a thread asks for: the word, the order (or two: if it writes, and otherwise), if it reads,
# and what it writes for a value read.
Step = tuple[str, str, bool, Callable[[int], int | None]]
Thread = Callable[[dict[str, int]], Generator[Step, int, None]]


class Relation:
    """A relation between accesses, as one set of bits for each."""

    def __init__(self, size: int, pairs: Iterator[tuple[int, int]] | list[tuple[int, int]]) -> None:
        """Relate these pairs of numbers below a size."""
        self.rows = [0] * size
        for one, other in pairs:
            self.rows[one] |= 1 << other

    def __or__(self, other: Relation) -> Relation:
        """Both relations together."""
        both = Relation(len(self.rows), [])
        both.rows = [a | b for a, b in zip(self.rows, other.rows, strict=True)]
        return both

    def then(self, other: Relation) -> Relation:
        """First this relation, then the other."""
        chained = Relation(len(self.rows), [])
        for one, row in enumerate(self.rows):
            for middle, ends in enumerate(other.rows):
                if row >> middle & 1:
                    chained.rows[one] |= ends
        return chained

    def closed(self) -> Relation:
        """One step or more."""
        closure = self | self
        for middle in range(len(self.rows)):
            for one in range(len(self.rows)):
                if closure.rows[one] >> middle & 1:
                    closure.rows[one] |= closure.rows[middle]
        return closure

    def where(self, keeps: Callable[[int, int], bool]) -> Relation:
        """The pairs that are kept."""
        size = range(len(self.rows))
        pairs = [(a, b) for a in size for b in size if self.has(a, b) and keeps(a, b)]
        return Relation(len(self.rows), pairs)

    def has(self, one: int, other: int) -> bool:
        """Returns True if the two are related."""
        return bool(self.rows[one] >> other & 1)

    @property
    def loops(self) -> bool:
        """True if something is related to itself."""
        return any(row >> one & 1 for one, row in enumerate(self.rows))


@dataclass(frozen=True)
class Outcome:
    """What one execution leaves: all threads' registers, and the words that are raced for."""

    registers: tuple[dict[str, int], ...]
    races: frozenset[str]


def ways(number: int, thread: Thread, values: dict[str, set[int]]) -> list[Way]:
    """List the ways through a thread, if each read may find any value of its word."""

    def follow(found: list[int]) -> Iterator[Way]:
        registers: dict[str, int] = {}
        accesses: list[Access] = []
        running = thread(registers)
        reads = iter(found)
        try:
            step = next(running)
            while True:
                word, order, reads_too, write = step
                value = 0
                if reads_too:
                    try:
                        value = next(reads)
                    except StopIteration:
                        for choice in sorted(values[word]):
                            yield from follow([*found, choice])
                        return
                written = write(value)
                order, _, failure = order.partition("|")
                if failure and written is None:
                    order = failure  # a compare-and-exchange that found something else
                read = value if reads_too else None
                accesses.append(Access(number, word, order, read, written))
                step = running.send(value)
        except StopIteration:
            yield Way(tuple(accesses), registers)

    return list(follow([]))


def all_ways(threads: list[Thread], start: dict[str, int]) -> list[list[Way]]:
    """List each thread's ways, with every value that any thread may write."""
    values = {word: {value} for word, value in start.items()}
    rounds = 0
    while True:
        found = [ways(number, thread, values) for number, thread in enumerate(threads)]
        more = {word: set(known) for word, known in values.items()}
        for access in (access for each in found for way in each for access in way.accesses):
            if access.written is not None:
                more[access.word].add(access.written)
        # A sum that is added to could grow for ever; no chain is longer than there are writes.
        rounds += 1
        if more == values or rounds > sum(max(map(count_writes, each)) for each in found):
            return found
        values = more


def count_writes(way: Way) -> int:
    """Count the writes on a way."""
    return sum(access.written is not None for access in way.accesses)


def executions(threads: list[Thread], start: dict[str, int]) -> Iterator[Outcome]:
    """Go through all executions."""
    for chosen in itertools.product(*all_ways(threads, start)):
        first = [Access(-1, word, "plain", None, value) for word, value in start.items()]
        accesses = [*first, *(access for way in chosen for access in way.accesses)]
        for races in consistent(accesses, list(start)):
            yield Outcome(tuple(way.registers for way in chosen), races)


def consistent(accesses: list[Access], words: list[str]) -> Iterator[frozenset[str]]:
    """Go through the consistent choices of what is read and of modification orders."""
    numbers = range(len(accesses))
    reads = [n for n in numbers if accesses[n].read is not None]
    sources = [[w for w in numbers if feeds(accesses, w, r)] for r in reads]
    for choice in itertools.product(*sources):
        read_from = dict(zip(reads, choice, strict=True))
        for orders in itertools.product(*(write_orders(accesses, word) for word in words)):
            races = judge(accesses, read_from, orders)
            if races is not None:
                yield races


def feeds(accesses: list[Access], write: int, read: int) -> bool:
    """Returns True if a read may read from a write, as far as word and value go."""
    source, target = accesses[write], accesses[read]
    return write != read and (source.word, source.written) == (target.word, target.read)


def write_orders(accesses: list[Access], word: str) -> Iterator[tuple[int, ...]]:
    """Go through the orders of the writes to a word; the first is that of its start."""
    first, *others = [
        n for n, access in enumerate(accesses) if access.word == word and access.written is not None
    ]
    return ((first, *order) for order in itertools.permutations(others))


def judge(
    accesses: list[Access], read_from: dict[int, int], orders: tuple[tuple[int, ...], ...]
) -> frozenset[str] | None:
    """Returns the words of a candidate that are raced for; None if it is no execution."""
    size = len(accesses)
    numbers = range(size)
    updates = {n for n in read_from if accesses[n].written is not None}
    before = {b: a for order in orders for a, b in itertools.pairwise(order)}
    if any(before[n] != read_from[n] for n in updates):
        return None

    def are_in_order(a: int, b: int) -> bool:
        one, other = accesses[a].thread, accesses[b].thread
        return a < b and (one == other != -1 or (one == -1 and other != -1))

    program = Relation(size, [(a, b) for a in numbers for b in numbers if are_in_order(a, b)])
    reading = Relation(size, [(write, read) for read, write in read_from.items()])
    writing = Relation(size, [p for order in orders for p in itertools.combinations(order, 2)])
    behind = Relation(
        size,
        [(r, w) for r, source in read_from.items() for w in numbers
         if writing.has(source, w) and w != r],
    )  # fmt: skip
    happens = (program | synchronisation(accesses, read_from)).closed()
    chain = (reading | writing | behind).closed()
    if happens.loops or happens.then(chain).loops or chain.loops:
        return None
    if ordered_consistently(accesses, program, happens, writing | behind).closed().loops:
        return None
    return frozenset(races(accesses, happens))


def synchronisation(accesses: list[Access], read_from: dict[int, int]) -> Relation:
    """Releases to the acquires that read from them, or from updates that follow them."""
    pairs = []
    for read, write in read_from.items():
        if accesses[read].order not in ACQUIRES:
            continue
        source: int | None = write
        while source is not None and accesses[source].order != "plain":
            if accesses[source].order in RELEASES:
                pairs.append((source, read))
            source = read_from.get(source)  # of an update
    return Relation(len(accesses), pairs)


def ordered_consistently(
    accesses: list[Access], program: Relation, happens: Relation, others: Relation
) -> Relation:
    """What the one order of all sequentially consistent accesses has to obey."""

    def same_word(a: int, b: int) -> bool:
        return accesses[a].word == accesses[b].word

    apart = program.where(lambda a, b: not same_word(a, b))
    order = program | apart.then(happens).then(apart) | happens.where(same_word) | others
    return order.where(lambda a, b: accesses[a].order == accesses[b].order == "seq_cst")


def races(accesses: list[Access], happens: Relation) -> Iterator[str]:
    """Name the words that are raced for."""
    for a, b in itertools.combinations(range(len(accesses)), 2):
        one, other = accesses[a], accesses[b]
        if one.word != other.word or one.thread == other.thread or -1 in (one.thread, other.thread):
            continue
        writes = one.written is not None or other.written is not None
        is_ordered = happens.has(a, b) or happens.has(b, a)
        if writes and not is_ordered and "plain" in (one.order, other.order):
            yield one.word
