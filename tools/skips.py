#!/usr/bin/env python3
"""Lists the reasons for skipped tests, with the number of tests for each.

    tools/skips.py release build/release/Testing/Temporary/LastTest.log
    tools/skips.py python build/python-test.skips

Each line begins with the first argument. The file is the log of ctest, whose GoogleTest programs print a reason before
each test that they skip, or the file of tests/python/conftest.py: lines of a count, a tab and a reason.
"""

import re
import sys
from collections import Counter
from pathlib import Path

# Lines of a skipped test: "[ RUN      ] Suite.Test", "file.cpp:12: Skipped", the reason, "[  SKIPPED ] Suite.Test (0 ms)".
RUN = re.compile(r"\[ RUN      \] ")
SKIPPED = re.compile(r"\[  SKIPPED \] \S+ \(\d+ ms\)$")
REASON_FOLLOWS = re.compile(r"^\S+:\d+: Skipped$")
RESULT = re.compile(r"^\[( *[A-Z]+ *|-{10}|={10})\] ")
# Lines of ctest itself: a program was not built, or its output says that it skips all of its tests.
NO_PROGRAM = re.compile(r"^(Could not find|Unable to find) executable")
WHOLE_PROGRAM = re.compile(r"^Skip regular expression found in output\. Regex=\[(.*)\]$")
ENTRY = re.compile(r"^\d+/\d+ Testing: ")


def gtest_skips(lines):
    """The reason of each test that GoogleTest skipped; if the fixture and the test both give one, the first."""
    reasons, reading = [], False
    for line in lines:
        if RUN.match(line):
            reasons, reading = [], False
        elif REASON_FOLLOWS.match(line):
            reasons, reading = [*reasons, ""], True
        elif SKIPPED.match(line):
            yield next((reason for reason in reasons if reason), "no reason given")
            reasons, reading = [], False
        elif RESULT.match(line) or not line.strip():
            reading = False
        elif reading:
            reasons[-1] = f"{reasons[-1]} {line.strip()}".strip()


def entries_of(lines):
    """Splits the log into one piece for each program that ctest ran."""
    piece = []
    for line in lines:
        if ENTRY.match(line):
            yield piece
            piece = []
        piece.append(line)
    yield piece


def skips_of_entry(lines):
    found = list(gtest_skips(lines))
    for line in lines:
        whole = WHOLE_PROGRAM.match(line)
        if NO_PROGRAM.match(line):
            yield "ctest found no program for it"
        elif whole and not found:
            told = [text for text in lines if whole.group(1) in text and not text.startswith(("Command: ", "Skip "))]
            yield (told or [whole.group(1)])[0].strip()
    yield from found


def skips_of_ctest(text):
    """{reason: number of tests} from ctest's LastTest.log."""
    return Counter(reason for entry in entries_of(text.splitlines()) for reason in skips_of_entry(entry))


def skips_of_pytest(text):
    """{reason: number of tests} from the file of conftest.py."""
    found = Counter()
    for line in text.splitlines():
        count, _, reason = line.partition("\t")
        found[reason] += int(count)
    return found


def skips_of(path):
    text = path.read_text(errors="replace")
    return skips_of_pytest(text) if path.suffix == ".skips" else skips_of_ctest(text)


def lines_of(name, found):
    """The lines to print, the most frequent reason first, then in alphabetical order."""
    total = sum(found.values())
    yield f"{name:<8} {total:5d} skipped" if total else f"{name:<8}     0 skipped: every test ran"
    for reason, count in sorted(found.items(), key=lambda item: (-item[1], item[0])):
        yield f"{name:<8} {count:5d}   {reason}"


def main(words):
    if len(words) != 2:
        print("usage: tools/skips.py NAME FILE", file=sys.stderr)
        return 2
    name, path = words[0], Path(words[1])
    if not path.exists():
        print(f"{name:<8}     ? skipped: there is no {path}")
        return 0
    print("\n".join(lines_of(name, skips_of(path))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
