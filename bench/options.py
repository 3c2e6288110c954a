"""How the options of a benchmark's command are read."""

import argparse


def parser_of(command: str, about: str | None) -> argparse.ArgumentParser:
    """
    Make the parser of a command, without options.

    Args:
        command: As in `python -m bench COMMAND`.
        about: Its module's docstring, which is shown as it is.
    """
    return argparse.ArgumentParser(
        prog=f"python -m bench {command}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
