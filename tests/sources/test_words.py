"""What users read has the words of the field, not those that only this project knows."""

import ast
import inspect
import re
from pathlib import Path

import shmloader
from shmloader import exports

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "shmloader"
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
PAGES.remove(ROOT / "docs" / "words.md")  # which explains the words of the code itself

# Of a page: tables that a program prints, code, headings, which others link, and links.
NO_PROSE = re.compile(
    r"<!-- (\w+): begin -->.*?<!-- \1: end -->|^```.*?^```$|^#.*?$|^[^\n]*●[^\n]*$"
    r"|`[^`\n]*`|\]\([^)]*\)",
    re.MULTILINE | re.DOTALL,
)

# Each word that is out, with what to write instead.
WORDS = {
    r"(?<!non-)\bleaf\b|\b(?:the|of|its|small|their) leaves\b": "tensor, array or value",
    r"\b(?:its|the|whose|their|same|loop's) places?\b(?! of\b)|\bplace in the epoch": "position",
    r"\b(?:told|tells?)\b(?!:)": "receives, is notified, reports, logs",
    r"\bways? out\b": "delivery",
    r"\bgrant(?:s|ed)?\b": "quota",
    r"\bbeside\b": "next to, compared with, in addition to",
    r"(?<!left )\bbehind\b": "after",
    r"\b(?:goes|going|went|gone|go) on\b": "continue, resume",
    r"\bgive[sn]? (?:it |them )?back\b|\bgave back\b": "release, free",
    r"\blearnt\b": "estimated, measured",
    r"\ba training\b(?! (?:job|loop|process|run|script|set|step))|\btrainings\b": "training job",
    r"(?<![\w.`])trainers?\b(?![\w`\[]|'s `)": "training process, training loop",
    r"\b(?:desk|nursery|nurseries|newborn)\b": "template process, the worker's end",
    r"\b(?:unknown|without an) orders?\b|\border in hand\b": "request",
    r"\b(?:an|its|last|next|no) answers?\b|\bunanswered\b": "response",
    r"(?<![\w.`])spill(?:s|ed)?\b(?![\w`:])": "copy out, copied out",
    r"\bheal(?:s|ed|ing)?\b(?!\.md)": "recover, recovery",
    r"\b(?:random|the|their|no|same) draws\b|\bno draw\b": "random numbers, random state",
    r"\btouched ahead\b|\bfetched ahead\b": "pre-faulted, prefetched",
    r"\b(?:lies|lie once|lay)\b|\bstands (?:for|in|there)\b": "is, is stored",
}


def prose_in(source):
    """List the strings of a module that are sentences or parts of them, without docstrings."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    documents = [
        each.body[0] for each in ast.walk(tree) if isinstance(each, documented) and each.body
    ]
    docstrings = {id(each.value) for each in documents if isinstance(each, ast.Expr)}
    constants = [each for each in ast.walk(tree) if isinstance(each, ast.Constant)]
    texts = [each.value for each in constants if id(each) not in docstrings]
    return [each for each in texts if isinstance(each, str) and re.search(r"\w \w", each)]


def public_docstrings():
    """Return the docstrings of exported names, and of their public methods, by name."""
    found = {}
    for name in {*filter(is_public, vars(exports)), *exports._LATER}:
        value = getattr(shmloader, name)
        members = vars(value) if inspect.isclass(value) else {}
        named = {f"{name}.{each}": made for each, made in members.items() if is_public(each)}
        for each, made in {name: value, **named}.items():
            found[each] = inspect.getdoc(made) or ""
    return found


def is_public(name):
    return not name.startswith("_")


def out_in(text):
    """List the words in a text that are out, with what to write instead."""
    words = " ".join(text.split())
    found = [(match, write) for out, write in WORDS.items() for match in re.finditer(out, words)]
    return [f"{words[max(0, m.start() - 20) : m.end() + 20]}: write {write}" for m, write in found]


def as_lines(found):
    """Write what was found one a line, as pytest would cut it short."""
    return "\n".join(["public texts do not use these words (docs/words.md):", *found])


def test_the_words_are_found():
    """Of each kind one is found, and words that look alike are not."""
    assert 2 == len(out_in("The trainer is told."))
    assert 1 == len(out_in("a leaf of the batch")) and [] == out_in("a non-leaf tensor")
    assert [] == out_in("`spilled: 3`, a training step, Lightning's `Trainer`, trainer_cpu_s")


def test_what_the_program_says():
    """Errors, warnings, logs and what commands print have none of the words that are out."""
    modules = sorted(PACKAGE.rglob("*.py"))

    assert len(modules) > 100
    found = [
        f"{path.relative_to(ROOT)}: {out}"
        for path in modules
        for text in prose_in(path.read_text())
        for out in out_in(text)
    ]
    assert [] == found, as_lines(found)


def test_what_is_exported():
    """Nor do the docstrings of public names."""
    documented = public_docstrings()

    assert len(documented) > 60
    found = [f"{name}: {out}" for name, text in documented.items() for out in out_in(text)]
    assert [] == found, as_lines(found)


def test_pages():
    """Nor do the pages for users, in what is their own prose."""
    found = [
        f"{page.relative_to(ROOT)}: {out}"
        for page in PAGES
        for out in out_in(NO_PROSE.sub(" ", page.read_text()))
    ]
    assert [] == found, as_lines(found)
