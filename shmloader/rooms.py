"""Rooms of the package, folders that may be deleted: what is left works, and says what it lacks."""

from importlib.util import find_spec


def has_room(room: str) -> bool:
    """Returns True if a folder of the package, such as "order/resuming", is there."""
    # A folder that is left with compiled files alone has no module that begins it.
    found = find_spec(f"{__package__}.{room.replace('/', '.')}")
    return found is not None and found.origin is not None


def require_room(what: str, room: str) -> None:
    """Refuse what needs a room that is absent."""
    if not has_room(room):
        name = f"{__package__}.{room.replace('/', '.')}"
        raise ModuleNotFoundError(lacking(what, room), name=name)


def lacking(what: str, room: str) -> str:
    """Say what needs a room that is absent."""
    return (
        f"{what} needs the room shmloader/{room}, which this installation lacks: leave it out, or "
        "install all of shmloader"
    )
