"""The command `cuflash` that the package installs, also with bad settings in the environment."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import cuflash
from cuflash import _command

ROOT = Path(__file__).parents[3]


def run(*words, **environment):
    """Runs the command in a separate process."""
    code = "import sys; from cuflash._command import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True,
                          env={**os.environ, **environment})


def test_the_package_declares_it():
    assert 'cuflash = "cuflash._command:main"' in (ROOT / "pyproject.toml").read_text()
    scripts = {entry.name: entry.value for entry in entry_points_of_cuflash()}
    if scripts:  # installed by pip, not taken from a build folder
        assert scripts["cuflash"] == "cuflash._command:main"
        command = str(Path(sys.executable).with_name("cuflash"))
        result = subprocess.run([command, "--version"], capture_output=True, text=True)
        assert result.stdout == f"cuflash {cuflash.__version__}\n", result.stderr


def entry_points_of_cuflash():
    from importlib import metadata

    try:
        return [e for e in metadata.distribution("cuflash").entry_points if e.group == "console_scripts"]
    except metadata.PackageNotFoundError:
        return []


def test_info_and_help():
    assert run("info").stdout.splitlines()[:3] == cuflash.info().splitlines()[:3]
    assert "usage: cuflash COMMAND" in run("--help").stdout
    nothing = run()
    assert nothing.returncode == 2 and "usage: cuflash" in nothing.stderr
    assert run("bench", "--help").returncode == 0


def test_check_is_the_self_check():
    result = run("check")
    assert result.returncode == 0 and result.stdout.count("passed") == 3, result.stderr


@pytest.mark.parametrize("words, sentence", [
    (["demo"], "cuflash: demo is a command of the whole tool, which this package was built without: `make build`"),
    (["benhc"], "cuflash: there is no command 'benhc'; did you mean bench?"),
    (["atend"], "cuflash: there is no command 'atend'; did you mean attend?"),
    (["xyzzy"], "cuflash: there is no command 'xyzzy' (cuflash --help lists them)"),
])
def test_other_commands_are_refused_with_a_sentence(words, sentence):
    result = run(*words)
    assert result.returncode == 2 and result.stderr.startswith(sentence) and result.stderr.count("\n") == 1


def test_every_command_of_the_tool_is_known():
    """Each command of the tool is either offered here or named as the whole tool's."""
    main = ROOT / "cli" / "main.cpp"
    found = set(re.findall(r'add_subcommand\(\s*"(\w+)"', main.read_text()))
    if not found:
        pytest.skip("cli/main.cpp does not list its commands one by one")
    assert found - {"list", "clear"} <= {*_command.COMMANDS, *_command.OF_WHOLE_TOOL}


def test_the_whole_tool_goes_first_if_it_is_built(tmp_path):
    tool = tmp_path / "cuflash"
    tool.write_text('#!/bin/sh\necho "whole tool: $@"\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    code = (f"import pathlib, sys; from cuflash import _command; _command.WHOLE_TOOL = pathlib.Path({str(tool)!r}); "
            "sys.exit(_command.main())")
    result = subprocess.run([sys.executable, "-c", code, "demo", "--x"], capture_output=True, text=True)
    assert result.stdout == "whole tool: demo --x\n"


@pytest.mark.parametrize("setting, value, sentence", [
    ("CUFLASH_TUNED", "xx", "CUFLASH_TUNED: is 'xx', must be on or off\n"),
    ("CUFLASH_CPU_ISA", "z80", 'CUFLASH_CPU_ISA: "z80" is not an instruction set of this processor'),
])
@pytest.mark.parametrize("words", [["-m", "cuflash"], ["-c", "from cuflash._command import main; exit(main(['info']))"]])
def test_a_setting_without_a_meaning_is_one_sentence(words, setting, value, sentence):
    result = subprocess.run([sys.executable, *words], capture_output=True, text=True,
                            env={**os.environ, setting: value})
    assert result.returncode == 2
    assert result.stderr.startswith("cuflash: " + sentence) and result.stderr.count("\n") == 1


def test_a_setting_without_a_meaning_is_a_value_error():
    code = "import cuflash\ntry:\n  cuflash.info()\nexcept ValueError as error:\n  print(error)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                            env={**os.environ, "CUFLASH_TUNED": "xx"})
    assert result.stdout == "CUFLASH_TUNED: is 'xx', must be on or off\n", result.stderr
