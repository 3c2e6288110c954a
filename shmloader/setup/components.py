"""
Optional components of the package: folders that may be deleted.

What is left works, and says what it lacks.
"""

from importlib.util import find_spec


def has_component(folder: str) -> bool:
    """Returns True if a folder of the package, such as "order/resuming", is there."""
    # A folder that is left with compiled files alone has no module that begins it.
    found = find_spec(_module(folder))
    return found is not None and found.origin is not None


def require_component(what: str, folder: str) -> None:
    """Refuse what needs a component that is absent."""
    if not has_component(folder):
        raise ModuleNotFoundError(lacking(what, folder), name=_module(folder))


def lacking(what: str, folder: str) -> str:
    """Say what needs a component that is absent."""
    return (
        f"{what} needs the component shmloader/{folder}, which this installation lacks: omit the "
        "option or call, or install all of shmloader"
    )


def _module(folder: str) -> str:
    return f"shmloader.{folder.replace('/', '.')}"
