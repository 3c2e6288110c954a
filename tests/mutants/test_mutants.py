"""The sample of mutants is always one, and each is a mistake that could be noticed."""

import pytest

from tests.mutants import in_c
from tests.mutants.site import mutants

IN_C = """\
/* if (a < b) return; */
int f(int a) {
  STEP("f: a < b");
  assert(a > 1);
  if (a < 3 && g(a)) return 0;
  self->sum = a + 1;
  h(a);
  say("a < b");
  return atomic_load_explicit(&self->x, memory_order_acquire);
}
"""
IN_PYTHON = '''\
"""1 + 1."""

__all__ = ["f" * 2]


def f(a: "int | None", b: int = 1) -> "int | None":
    """2 + 2."""
    if a < b:
        raise ValueError(f"{a + 1}")
    log.tell("%d", a + 1)
    if log.is_heard():
        g(a + 1)
    h(a)
    return a


def __repr__(self):
    return "a" + "b"
'''


def made(sites, text):
    """List (operator, line that is changed, as it is then) of each mistake."""
    lines = text.splitlines()
    return {
        (site.operator, now.strip())
        for site in sites
        for whole in site.texts()
        for was, now in zip(lines, whole.splitlines(), strict=True)
        if was != now
    }


def test_each_operator_of_c():
    """Each changes code of one line, but no comment, string, step or assertion."""
    assert made(in_c.sites_of("csrc/f.c", IN_C), IN_C) == {
        ("comparison", "if (a <= 3 && g(a)) return 0;"),
        ("off_by_one", "if (a < 4 && g(a)) return 0;"),
        ("off_by_one", "if (a < 3 && g(a)) return 1;"),
        ("logic", "if (a < 3 || g(a)) return 0;"),
        ("negated", "if (!(a < 3 && g(a))) return 0;"),
        ("arithmetic", "self->sum = a - 1;"),
        ("off_by_one", "self->sum = a + 2;"),
        ("dropped", ";"),
        ("relaxed", "return atomic_load_explicit(&self->x, memory_order_relaxed);"),
    }


@pytest.mark.thorough
def test_no_mistake_in_words():
    """In Python a mistake is none in an annotation, a docstring, an error's words or a log's."""
    in_python = pytest.importorskip("tests.mutants.in_python", exc_type=ImportError)
    found = made(in_python.sites_of("f.py", IN_PYTHON), IN_PYTHON)

    assert {line for _, line in found} == {
        'def f(a: "int | None", b: int = 2) -> "int | None":',
        "if a <= b:",
        "if not (a < b):",
        "pass",
        "h(None)",
    }


def test_a_line_elsewhere_changes_no_rank():
    """The order of the draw is one of what is written, not of where."""
    before = mutants(in_c.sites_of("csrc/f.c", IN_C))
    after = mutants(in_c.sites_of("csrc/f.c", f"\n\n{IN_C}"))

    assert [each.rank for each in before] == [each.rank for each in after]
    assert before[0].name != after[0].name
