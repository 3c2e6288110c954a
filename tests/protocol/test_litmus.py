"""Litmus tests: what csrc/ relies on holds in every execution that C11's memory model allows."""

import re

import pytest

from tests.protocol.litmus import programs
from tests.sources.test_sourcecode import ATOMIC_CALLS, sync_ends

NAMED = re.compile(r"(.*); // ((?:[a-z]+-[RA](?:, )?)+)$", re.MULTILINE)
HEADER = "C classic\n(*\n{}\n*)\n{{ x = 0; y = 0; }}\n"


def classic(*threads, never):
    """Read a program of the textbooks: one thread for each list of statements."""
    bodies = [
        f"P{number} (atomic_int *x, atomic_int *y) {{\n{lines}\n}}\n"
        for number, lines in enumerate("\n".join(thread) for thread in threads)
    ]
    names, values = zip(*(part.split("=") for part in never.split()), strict=True)
    table = f" {' '.join(names)}\n {' '.join(values)} forbidden: so\n"
    return HEADER.format(table + f" {'- ' * len(names)}acceptable: else") + "\n".join(bodies)


def store(word, order, value=1):
    return f"  atomic_store_explicit({word}, {value}, memory_order_{order});"


def load(register, word, order):
    return f"  int {register} = atomic_load_explicit({word}, memory_order_{order});"


def store_buffering(order):
    one = [store("x", order), load("r0", "y", order.replace("release", "acquire"))]
    other = [store("y", order), load("r0", "x", order.replace("release", "acquire"))]
    return classic(one, other, never="0:r0=0 1:r0=0")


def message_passing(release, acquire):
    one = [store("x", "relaxed"), store("y", release)]
    other = [load("r0", "y", acquire), load("r1", "x", "relaxed")]
    return classic(one, other, never="1:r0=1 1:r1=0")


def load_buffering(order):
    one = [load("r0", "x", order.replace("release", "acquire")), store("y", order)]
    other = [load("r0", "y", order.replace("release", "acquire")), store("x", order)]
    return classic(one, other, never="0:r0=1 1:r0=1")


def independent_readers(order):
    write = order.replace("acquire", "release")
    readers = [
        [load("r0", first, order), load("r1", second, order)] for first, second in ("xy", "yx")
    ]
    never = "2:r0=1 2:r1=0 3:r0=1 3:r1=0"
    return classic([store("x", write)], [store("y", write)], *readers, never=never)


def same_word(order):
    return classic(
        [store("x", order)], [load("r0", "x", order), load("r1", "x", order)],
        never="1:r0=1 1:r1=0",
    )  # fmt: skip


# What the textbooks say of each: True if the outcome may be seen.
CLASSICS = {
    "store buffering, relaxed": (store_buffering("relaxed"), True),
    "store buffering, release": (store_buffering("release"), True),
    "store buffering, seq_cst": (store_buffering("seq_cst"), False),
    "message passing, relaxed": (message_passing("relaxed", "relaxed"), True),
    "message passing, no acquire": (message_passing("release", "relaxed"), True),
    "message passing, no release": (message_passing("relaxed", "acquire"), True),
    "message passing": (message_passing("release", "acquire"), False),
    "load buffering, relaxed": (load_buffering("relaxed"), True),
    "load buffering, release": (load_buffering("release"), False),
    "independent readers, acquire": (independent_readers("acquire"), True),
    "independent readers, seq_cst": (independent_readers("seq_cst"), False),
    "two loads of a word": (same_word("relaxed"), False),
}


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """Give a function that reads a program from its text."""
    monkeypatch.setattr(programs, "HERE", tmp_path)

    def read(text):
        (tmp_path / "text.litmus").write_text(text)
        return programs.read("text")

    return read


@pytest.mark.parametrize("name", CLASSICS)
def test_checker_knows_the_classics(planted, name):
    """The checker allows what C11 allows and forbids what it forbids."""
    text, is_allowed = CLASSICS[name]

    assert ({"outcome"} if is_allowed else set()) == planted(text).faults()


def test_checker_finds_a_race(planted):
    """Plain accesses race, unless a release and an acquire stand between them."""
    guarded = ["  if (r0 == 1) {", "  int r1 = *x;", "  }"]
    one, look = ["  *x = 1;", store("y", "release")], load("r0", "y", "acquire")

    assert {"race for x"} == planted(classic(one, [look, guarded[1]], never="1:r1=2")).faults()
    assert set() == planted(classic(one, [look, *guarded], never="1:r1=2")).faults()


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (" 1:r0\n 0 acceptable: too early", "an outcome that is not listed"),
        (" 1:r0\n - acceptable: all\n 2 acceptable: two", "never two"),
    ],
)
def test_table_lists_each_outcome_and_no_other(planted, table, fault):
    """A state that no row has is a fault, and so is an acceptable row that no execution has."""
    program = classic([store("x", "relaxed")], [load("r0", "x", "relaxed")], never="1:r0=2")
    start, (_, end, rest) = HEADER.partition("{}")[0], program.partition("\n*)")

    assert {fault} == planted(start + table + end + rest).faults()


def test_updates_count_once(planted):
    """Two additions to a word are never lost."""
    add = "  int r0 = atomic_fetch_add_explicit(x, 1, memory_order_relaxed);"

    assert set() == planted(classic([add], [add], never="0:r0=0 1:r0=0")).faults()


def test_unknown_statement_is_refused(planted):
    """A line that the checker does not understand is an error, not nothing."""
    with pytest.raises(programs.NotUnderstood, match="atomic_thread_fence"):
        planted(classic(["  atomic_thread_fence(memory_order_seq_cst);"], never="0:r0=1")).faults()


MISTAKES = [mistake for name in programs.PROGRAMS for mistake in programs.mistakes(name)]


def test_every_program_has_mistakes():
    """Programs and mistakes are as many as docs/proofs.md says."""
    assert {mistake.program for mistake in MISTAKES} == set(programs.PROGRAMS)
    assert (10, 31) == (len(programs.PROGRAMS), len(MISTAKES))


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_program_holds(name):
    """Executions have no race and end in acceptable rows of the table, and each row occurs."""
    assert set() == programs.read(name).faults()


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_mistake_is_found(mistake):
    """A weaker order, or a check left out, shows in the way that is expected of it."""
    assert mistake.fault in programs.read(mistake.program, mistake).faults()


def orders_of(pair):
    """List the orders of the calls in csrc/ whose comments name this end of a pair."""
    name, _, end = pair.rpartition("-")
    named = {"R": "release", "A": "acquire"}[end], name
    return [call.orders for call in ATOMIC_CALLS if named in sync_ends(call)]


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_orders_are_those_of_the_sources(name):
    """An access that has a pair's name has the orders of a call in csrc/ of that name."""
    for line, pairs in NAMED.findall((programs.HERE / f"{name}.litmus").read_text()):
        orders = tuple(re.findall(r"memory_order_(\w+)", line))
        for pair in pairs.split(", "):
            assert orders in [found[: len(orders)] for found in orders_of(pair)], pair
