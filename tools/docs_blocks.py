"""Fenced blocks of the documents, with the marks before them. tools/run_docs.py says what they mean."""

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARKS = ("not run", "not checked", "with", "run", "output", "message")
NEEDS_REASON = ("not run", "not checked", "with", "message")
LANGUAGES = ("cpp", "c", "cmake", "python", "sh", "")


class Wrong(Exception):
    """Raised if something in a document is wrong."""


@dataclass
class Block:
    document: str
    line: int  # number of its first line of code, from 1
    language: str
    text: str
    heading: str  # the last second-level heading before it
    marks: dict = field(default_factory=dict)  # each mark with its detail: a reason, code or a name

    @property
    def name(self):
        return f"{self.document}:{self.line}"

    @property
    def is_run(self):
        return not {"not run", "not checked"} & set(self.marks)


def documents():
    pages = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    return sorted(ROOT.glob("README*.md")) + pages + sorted(ROOT.glob("docs/**/*.md"))


def marks_before(lines, fence, name):
    """The marks in the comments right before the fence."""
    marks, end = {}, fence
    while end > 0 and lines[end - 1].strip().endswith("-->"):
        begin = end - 1
        while begin > 0 and "<!--" not in lines[begin]:
            begin -= 1
        comment = "\n".join(lines[begin:end]).strip()
        mark, colon, detail = comment.removeprefix("<!--").removesuffix("-->").strip().partition(":")
        if mark not in MARKS or bool(colon and detail.strip()) != (mark in NEEDS_REASON):
            raise Wrong(f"{name}: the comment before this block is no mark: {comment}; tools/run_docs.py lists them")
        marks[mark] = detail.strip()
        end = begin
    return marks


def blocks_of(path):
    document = str(path.relative_to(ROOT))
    lines = path.read_text().split("\n")
    heading, begin, found = "", None, []
    for number, line in enumerate(lines):
        fence = re.match(r"\s*```(.*)$", line)
        if begin is None and line.startswith("## "):
            heading = line[3:]
        if not fence:
            continue
        if begin is None:
            begin, language = number, fence.group(1).strip()
            continue
        name = f"{document}:{begin + 2}"
        if language not in LANGUAGES:
            raise Wrong(f"{name}: no rule for the language '{language}'; there are rules for {LANGUAGES}")
        text = "\n".join(lines[begin + 1 : number]) + "\n"
        found.append(Block(document, begin + 2, language, text, heading, marks_before(lines, begin, name)))
        begin = None
    if begin is not None:
        raise Wrong(f"{document}:{begin + 1}: this block has no end")
    return found


def matches(pattern, text):
    """Whether the text matches the pattern, in which "..." stands for anything within a line."""
    parts = [re.escape(part) for part in pattern.strip().split("...")]
    return re.fullmatch(".*".join(parts), text.strip()) is not None


def execute(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def require(result, name, what):
    if result.returncode != 0:
        raise Wrong(f"{name}: {what} (exit code {result.returncode})\n{result.stdout}")
    return result.stdout
