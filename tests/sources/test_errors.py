"""Each error is also the builtin that a caller would catch, and each says when it happens."""

import inspect
import warnings

import pytest

import shmloader
from shmloader import errors

OWN = [kind for kind in vars(errors).values() if getattr(kind, "__module__", "") == errors.__name__]
OWN = [kind for kind in OWN if inspect.isclass(kind)]
ERRORS = [kind for kind in OWN if issubclass(kind, errors.ShmloaderError)]


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


def test_a_caught_warning_is_shown_again_as_it_was():
    """A warning object keeps its class and its text."""
    with pytest.warns(errors.RestartWarning, match="once more"):
        errors.warn(errors.RestartWarning("once more"))


def test_code_without_a_name_is_warned():
    """A warning is shown even if the user's code has no module's name, as in exec()."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec("warn('look')", {"warn": errors.warn})

    assert [("<string>", 1)] == [(warning.filename, warning.lineno) for warning in caught]
