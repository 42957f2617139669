"""The Python programs of docs/python.md run as they stand there."""

import importlib.util
import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "python.md"
PROGRAMS = re.findall(r"^## ([^\n]+)|```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def titled_programs():
    """Each program with the heading that it stands under."""
    title = ""
    for heading, program in PROGRAMS:
        title = heading or title
        if program:
            yield pytest.param(program, id=title)


@pytest.mark.parametrize("program", titled_programs())
def test_program(program):
    for module in set(re.findall(r"^(?:import|from) (\w+)", program, re.MULTILINE)):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})
