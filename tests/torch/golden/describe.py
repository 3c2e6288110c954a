"""Turn a batch into plain tuples that are equal if and only if the batches are, bit for bit."""

from tests.helpers.leaves.parts import parts_of


def describe(value):
    """
    Return what a batch consists of, piece by piece: types, dtypes, shapes, strides and bytes.

    The result shares no memory with `value`, so it stays as it is when a slot is written again.
    """
    return tuple((part.what, part.bits) for part in parts_of(value))


def qualified_name(kind):
    return f"{kind.__module__}.{kind.__qualname__}"


def first_difference(expected, actual, path="run"):
    """Return where two descriptions differ first, as text, or None if they are equal."""
    if expected == actual:
        return None
    if not same_shape(expected, actual):
        return f"{path}: expected {expected!r}, got {actual!r}"
    keys = expected if isinstance(expected, dict) else range(len(expected))
    found = (first_difference(expected[key], actual[key], f"{path}[{key!r}]") for key in keys)
    return next(filter(None, found))


def same_shape(expected, actual):
    if type(expected) is not type(actual):
        return False
    if isinstance(expected, dict):
        return expected.keys() == actual.keys()
    return isinstance(expected, (list, tuple)) and len(expected) == len(actual)
