"""Numbers as people read them."""


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def times(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def size(count: float) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def argument(name: str, value: object) -> str:
    """Write an option as it is typed."""
    return f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"


def tenths(count: float) -> str:
    """Returns a number with one digit after the point, but not 0.0 for a little."""
    return "less than 0.1" if 0 < count < 0.05 else f"{count:.1f}"


def cores(count: float, ranks: int = 1) -> str:
    """Returns a number of cores; of several ranks on a machine, each has only its part of them."""
    number = tenths(count).removesuffix(".0")
    text = f"{number} core" if number == "1" else f"{number} cores"
    return text if ranks == 1 else f"this rank's {text}"
