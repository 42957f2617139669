"""Checks the names in an sh block of a document: make targets, commands of cuflash and their options, files,
variables."""

import json
import re
import shlex
import subprocess

from docs_blocks import ROOT, Wrong

# Commands of other programs, whose options are not checked.
FOREIGN = ("apt-get", "c++", "cc", "cd", "ctest", "export", "g++", "git", "grep", "ldconfig", "nvidia-smi", "od", "pip",
           "pkg-config", "printf")


def logical_lines(text):
    return [line.strip() for line in text.replace("\\\n", " ").split("\n") if line.strip()]


class Names:
    """The names that an sh block may use."""

    def __init__(self, cli):
        self.cli = cli
        makefile = (ROOT / "Makefile").read_text()
        self.targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
        self.make_variables = set(re.findall(r"\b([A-Z_]+) \?=|\$\(([A-Z_]+)\)", makefile))
        self.make_variables = {name for pair in self.make_variables for name in pair if name}
        presets = json.loads((ROOT / "CMakePresets.json").read_text())
        self.presets = {preset["name"] for preset in presets["configurePresets"]}
        files = [*ROOT.glob("CMakeLists.txt"), *ROOT.glob("src/**/*.cpp"), *ROOT.glob("tools/*.sh"),
                 *ROOT.glob("tests/**/*.py"), *ROOT.glob("tests/**/*.cpp")]
        text = "\n".join(file.read_text() for file in files)
        self.variables = set(re.findall(r"\bCUFLASH_[A-Z_]+\b", text))
        self.helps = {}

    def help_of(self, *commands):
        """The help of `cuflash <commands>`, or nothing if the help of `cuflash` does not list the command."""
        if commands and not re.search(rf"^  {commands[-1]} ", self.help_of(*commands[:-1]) or "", re.MULTILINE):
            return None
        if commands not in self.helps:
            command = [self.cli, *commands, "--help"]
            self.helps[commands] = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
        return self.helps[commands]


def check_make(names, words):
    for word in words:
        variable, equals, _ = word.partition("=")
        if equals and variable not in names.make_variables | {"CXX", "CC"}:
            raise Wrong(f"the Makefile has no variable {variable}")
        if not equals and not word.startswith("-") and word not in names.targets:
            raise Wrong(f"the Makefile has no target {word}")


def check_cuflash(names, words):
    commands = []
    while words and not words[0].startswith("-"):
        commands.append(words.pop(0))
    text = names.help_of(*commands)
    if text is None:
        raise Wrong(f"cuflash has no command {' '.join(commands)}")
    known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))
    for word in words:
        option = word.partition("=")[0]
        if re.match(r"--?[a-z]", option) and option not in known:
            raise Wrong(f"cuflash {' '.join(commands)} has no option {option}")


def check_python(names, words):
    if words[:2] == ["-m", "cuflash"] or words[:2] == ["-m", "pytest"]:
        return
    if words[:1] == ["-m"]:
        words = words[1:]
        module = "python/" + words[0].replace(".", "/")
        files = [*ROOT.glob(f"{module}/*.py"), *ROOT.glob(f"{module}.py")]
    else:
        files = [ROOT / words[0]] if words and (ROOT / words[0]).is_file() else []
    if not files:
        raise Wrong(f"there is no file {words[0] if words else ''}")
    text = "\n".join(file.read_text() for file in files)
    for option in (word.partition("=")[0] for word in words[1:] if word.startswith("--")):
        if f'"{option}"' not in text and f'"{option[2:].replace("-", "_")}"' not in text:
            raise Wrong(f"{words[0]} has no option {option}")


def check_cmake(names, words):
    for before, word in zip(["", *words], words):
        option = re.match(r"-D(CUFLASH_\w+)", word)
        if option and option.group(1) not in names.variables:
            raise Wrong(f"CMakeLists.txt has no option {option.group(1)}")
        if before == "--preset" and word not in names.presets:
            raise Wrong(f"CMakePresets.json has no preset {word}")


def check_built(program):
    """Checks that a program is built: that it is a test, or has a target in CMake."""
    targets = "\n".join(file.read_text() for file in ROOT.glob("*/CMakeLists.txt"))
    if not any((ROOT / "tests").rglob(f"{program}.cpp")) and f"add_executable({program} " not in targets:
        raise Wrong(f"nothing builds {program}")


CHECKS = {
    "make": check_make,
    "cmake": check_cmake,
    "cuflash": check_cuflash,
    "build/release/bin/cuflash": check_cuflash,
    "python": check_python,
    "python3": check_python,
}


def check_sh(names, block):
    for line in logical_lines(block.text):
        for part in re.split(r"\s(?:&&|\|\||\||;)\s", line):
            words = shlex.split(part, comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):
                variable = words.pop(0).partition("=")[0]
                if variable.startswith("CUFLASH_") and variable not in names.variables:
                    raise Wrong(f"{block.name}: nothing reads the variable {variable}")
            if not words or words[0] in FOREIGN:
                continue
            try:
                if words[0] in CHECKS:
                    CHECKS[words[0]](names, words[1:])
                elif words[0].startswith("build/release/bin/"):
                    check_built(words[0].rpartition("/")[2])
                elif not (ROOT / words[0]).is_file():
                    raise Wrong(f"no rule for the command {words[0]}; mark the block, or add a rule")
            except Wrong as wrong:
                raise Wrong(f"{block.name}: {wrong}: {line}") from None
