"""`python -m bench`: the comparison of loaders, or the question that the first argument names."""

import importlib
import sys
from pkgutil import iter_modules

from bench import questions

_QUESTIONS = {
    each.name: f"bench.questions.{each.name}" for each in iter_modules(questions.__path__)
}
_COMMANDS = {**_QUESTIONS, "real": "bench.real"}
_FIRST = "transport"


def main() -> int:
    """Ask the question; the exit code is 0 if every batch was right."""
    arguments = sys.argv[1:]
    name = arguments.pop(0) if arguments and arguments[0] in _COMMANDS else _FIRST
    module = importlib.import_module(_COMMANDS[name])
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{module.__name__}.command")
    return module.QUESTION.ask(name, module.__doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
