#!/usr/bin/env python3
"""Prints a header with its plain comments turned into Doxygen comments: tools/doxygen_filter.py
include/cuflash/cuflash.h

The first comment describes the file, a comment after code describes that line, and any other describes what follows it.
A comment after several names of one declaration describes each of them. Lines indented by three blanks are code.
"""

import re
import sys

TOKENS = re.compile(r'"(?:[^"\\\n]|\\.)*"|/\*.*?\*/|//[^\n]*', re.DOTALL)
NAMES = re.compile(r"^ *(\w+) (\w+(?:, \w+)+); */\*\*<(.*?)\*/", re.MULTILINE | re.DOTALL)


def documenting(source):
    """The source with documenting comments turned into Doxygen's, except those after closing braces and directives."""

    def replace(match):
        token, before = match.group(), source[: match.start()].rpartition("\n")[2].strip()
        if token.startswith('"') or before.startswith(("}", "#")):
            return token
        token = re.sub(r" \.{2,3} ", " &hellip; ", token)  # a brief description ends with a dot and a blank
        return f"{'///' if token.startswith('//') else '/**'}{'<' if before else ''}{token[2:]}"

    return TOKENS.sub(replace, source)


def each_name(match):
    kind, names, comment = match.groups()
    return "\n".join(f"{kind} {name}; /**<{comment}*/" for name in names.split(", "))


def with_code(text):
    return re.sub(r"((?:^///   .*\n)+)", r"/// \\code\n\1/// \\endcode\n", text, flags=re.MULTILINE)


def filtered(source, name):
    text = with_code(NAMES.sub(each_name, documenting(source)))
    first = re.match(r"/\*.*?\*/\n|(?:///[^\n]*\n)+", text, re.DOTALL).group()
    is_block = first.startswith("/**")
    about_file = first.replace("*/", f"\n * \\file {name} */") if is_block else f"{first}/// \\file {name}\n"
    return about_file + text[len(first) :]


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.stdout.write(filtered(file.read(), re.search(r"cuflash/\w+\.h$", sys.argv[1]).group()))
