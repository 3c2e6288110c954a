"""Numbers as people read them."""


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def number(cores: float) -> str:
    return f"{cores:.0f}" if cores == int(cores) else f"{cores:.1f}"
