"""Each error is also the builtin that a caller would catch, and each says when it happens."""

import inspect
import warnings
from pathlib import Path

import pytest
import torch.utils.data

import shmloader
from shmloader import errors

OWN = [kind for kind in vars(errors).values() if getattr(kind, "__module__", "") == errors.__name__]
OWN = [kind for kind in OWN if inspect.isclass(kind)]
ERRORS = [kind for kind in OWN if issubclass(kind, errors.ShmloaderError)]


def test_there_are_errors():
    """The checks below have something to check."""
    assert len(ERRORS) > 3


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_every_error_is_public(kind):
    """An error or a warning can be imported from the package, and says when it happens."""
    assert kind is getattr(shmloader, kind.__name__)
    assert kind.__doc__.strip().endswith(".")


@pytest.mark.parametrize(
    "kind", [kind for kind in ERRORS if kind is not errors.ShmloaderError], ids=lambda k: k.__name__
)
def test_every_error_is_a_builtin_one(kind):
    """An error is caught as shmloader's and as the builtin that says the same."""
    builtin = [base for base in kind.__mro__ if base.__module__ == "builtins"]

    assert issubclass(kind, errors.ShmloaderError)
    assert builtin[0] not in (Exception, BaseException, object)


def frame_of(folder, text):
    """Returns a function whose code lies in a file of that folder."""
    scope = {"warn": errors.warn, "__name__": "somewhere"}
    exec(compile(text, str(folder / "code.py"), "exec"), scope)
    return scope["call"]


def test_warnings_point_at_user_code(tmp_path):
    """The user's line is named, however many calls of ours and of torch's loader lie between."""
    package = Path(shmloader.__file__).parent
    theirs = Path(torch.utils.data.__file__).parent
    inner = frame_of(package, "def call(next):\n    warn('look', RuntimeWarning)")
    middle = frame_of(theirs, "def call(next):\n    next[0](next[1:])")
    outer = frame_of(tmp_path, "\n\ndef call(next):\n    next[0](next[1:])")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outer([middle, middle, inner])

    (warning,) = caught
    assert (str(tmp_path / "code.py"), 4) == (warning.filename, warning.lineno)
    assert ("look", RuntimeWarning) == (str(warning.message), warning.category)


def test_a_caught_warning_is_shown_again_as_it_was():
    """A warning object keeps its class and its text."""
    with pytest.warns(errors.RestartWarning, match="once more"):
        errors.warn(errors.RestartWarning("once more"))
