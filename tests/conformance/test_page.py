"""The table of kinds and cases in docs/proofs.md is that of the suite."""

from pathlib import Path

from tests.conformance import page
from tests.conformance.kinds import KINDS

PROOFS = Path(__file__).resolve().parents[2] / "docs" / "proofs.md"


def test_the_page_has_the_table():
    """It was printed by `python -m tests.conformance.page`, and nothing has changed since."""
    assert "\n".join(page.lines()) in PROOFS.read_text()


def test_every_difference_is_of_a_case():
    """A kind differs in cases that there are."""
    names = {name for name, _ in page.cases()}
    assert set() == {name for kind in KINDS for name in kind.differs} - names
