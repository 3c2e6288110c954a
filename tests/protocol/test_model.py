"""The protocol's models, searched exhaustively: what must hold holds, and each mistake is found."""

import functools
import re

import pytest

from tests.protocol.model import cases, spin

MODEL_TEXT = {path.stem: path.read_text() for path in spin.HERE.glob("*.pml")}
LONG_FROM_S = 10

pytestmark = pytest.mark.timeout(spin.LONGEST_S + 60)
needs_spin = pytest.mark.skipif(not spin.is_here(), reason=spin.MISSING)

check = functools.cache(spin.check)  # two tests look at each run


def with_included(model):
    """Read a model together with what it includes."""
    included = re.findall(r'^#include "(\w+)\.pml"', MODEL_TEXT[model], re.MULTILINE)
    return "".join(MODEL_TEXT[name] for name in [model, *included])


def bounds_of(run):
    """List the bounds of a run, those that stand in its file included."""
    defaults = re.findall(r"#ifndef (\w+)\n#define \1 (\d+)", MODEL_TEXT[run.model])
    given = [define.split("=") for define in run.defines if "=" in define]
    return {name: int(value) for name, value in [*defaults, *given]}


def covers(run, other):
    """Returns True if all that may happen in one search may happen in another."""
    bounds, others = bounds_of(run), bounds_of(other)
    same = (run.model, run.ends) == (other.model, other.ends)
    return same and all(bounds[name] >= others[name] for name in others)


def switches(model):
    """List the mistakes that a model can make."""
    text = with_included(model)
    bounds = bounds_of(cases.Run(model, "")).keys()
    return set(re.findall(r"^#ifn?def (\w+)", text, re.MULTILINE)) - bounds


def test_every_model_is_run():
    """Each model has runs, one of them for its end; other files are included by a model."""
    included = re.findall(r'^#include "(\w+)\.pml"', "".join(MODEL_TEXT.values()), re.MULTILINE)

    assert {*cases.MODELS, *included} == MODEL_TEXT.keys()
    assert {run.model for run in cases.RUNS if run.ends} == set(cases.MODELS)
    assert {run.model for run in cases.RUNS if not run.ends} == set(cases.MODELS)


@pytest.mark.parametrize("model", cases.MODELS)
def test_every_switch_is_a_mutation(model):
    """The mutations of the list are those that stand in the model."""
    listed = {mutation.flag for mutation in cases.MUTATIONS if mutation.model == model}

    assert switches(model) == listed


@pytest.mark.core(every=12)
@pytest.mark.parametrize("mutation", cases.MUTATIONS, ids=lambda mutation: mutation.flag)
def test_mutation_is_searched_where_the_model_holds(mutation):
    """The fault of a mutation is its own: within its bounds a run shows that there is none else."""
    assert any(covers(run, mutation.run) for run in cases.RUNS)


@pytest.mark.thorough
@needs_spin
@pytest.mark.parametrize("run", cases.RUNS, ids=lambda run: f"{run.model}-{run.name}")
def test_run_holds(run, stress_seconds):
    """No fault is found, wherever the search goes."""
    if run.is_long and stress_seconds < LONG_FROM_S:
        pytest.skip(f"`make sanitize` searches it, and --stress-seconds {LONG_FROM_S}")

    assert check(run).fault == ""


@pytest.mark.thorough
@needs_spin
@pytest.mark.parametrize("model", cases.MODELS)
def test_every_statement_is_executed(model):
    """No statement of a model is left out by all of its runs."""
    runs = [run for run in cases.RUNS if run.model == model and not (run.ends or run.is_long)]

    assert frozenset.intersection(*[check(run).idle for run in runs]) == set()


@pytest.mark.core(every=12)
@needs_spin
@pytest.mark.parametrize("mutation", cases.MUTATIONS, ids=lambda mutation: mutation.flag)
def test_mutation_is_found(mutation):
    """A mistake shows, and in the way that is expected of it."""
    assert spin.check(mutation.run, spin.SHORT).fault.startswith(mutation.fault)


@needs_spin
def test_model_that_spin_complains_of_is_refused(monkeypatch, tmp_path):
    """A mistake in a model's text is an error, and nothing is searched."""
    (tmp_path / "ring.pml").write_text("active proctype writer() { nothing = 1 }")
    monkeypatch.setattr(spin, "HERE", tmp_path)

    with pytest.raises(spin.CheckerError, match="undeclared variable"):
        spin.check(cases.Run("ring", "wrong"))


@needs_spin
@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [("DEPTH", 50, "max search depth too small"), ("MEMORY_MB", 129, "Search not completed")],
)
def test_search_that_is_cut_short_is_refused(monkeypatch, limit, value, said):
    """A search that did not go everywhere proves nothing, so it is an error."""
    monkeypatch.setattr(spin, limit, value)

    with pytest.raises(spin.CheckerError, match=said):
        spin.check(cases.Run("leases", "larger than that"), spin.SHORT)


@needs_spin
def test_statement_that_is_never_executed_is_known():
    """Without deaths the ring is not reopened, and the search says so."""
    assert any("gone = 0" in statement for statement in check(cases.Run("ring", "alone")).idle)
