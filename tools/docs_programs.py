"""Blocks of the documents as programs: C++, C, CMake and sh. setup has the tools and the build; see run_docs.py."""

import os
import re
import tempfile

from docs_blocks import ROOT, execute, require


def body_of(block):
    """The block as a function `block_body`: its includes, and everything else."""
    includes = re.findall(r"^#include .*$", block.text, re.MULTILINE)
    text = re.sub(r"^#include .*$", "", block.text, flags=re.MULTILINE)
    place = f'#line {block.line} "{block.document}"\n'
    before = block.marks.get("with", "") + "\n"
    if re.search(r"\bint main\(", text):
        return includes, before + place + re.sub(r"\bint main\([^)]*\)", "int block_body(void)", text)
    return includes, f"int block_body(void) {{\n{before}{place}{text}return 0;\n}}\n"


def compile_command(setup, compiler, flags, source, program):
    library = setup.build / "lib"
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-variable", "-Wno-unused-but-set-variable"]
    return [*setup.launcher, compiler, *flags, *warnings, f"-I{ROOT / 'include'}", source, "-o", program,
            f"-L{library}", "-lcuflash", "-lm", f"-Wl,-rpath,{library}"]


def build_cpp(setup, blocks, folder):
    """Builds one program with all blocks, each in its own namespace; its argument selects the block to run."""
    includes, bodies = [], []
    for number, block in enumerate(blocks):
        own, body = body_of(block)
        includes += [line for line in own if line not in includes]
        bodies.append(f"namespace block_{number} {{\n{body}}}\n")
    cases = "".join(f"case {n}: return block_{n}::block_body();\n" for n in range(len(blocks)))
    main = f"int main(int, char** argv) {{\nswitch (std::atoi(argv[1])) {{\n{cases}}}\nreturn 99;\n}}\n"
    source, program = folder / "blocks.cpp", folder / "blocks"
    source.write_text("\n".join(["#include <cstdlib>", *includes, *bodies, '#line 1 "the list of all blocks"', main]))
    result = execute(compile_command(setup, setup.cxx, ["-std=c++20"], source, program), cwd=folder)
    require(result, "C++ blocks", "these do not compile together")
    return [[program, str(number)] for number in range(len(blocks))]


def build_c(setup, block, folder):
    includes, body = body_of(block)
    source, program = folder / f"block_{block.line}.c", folder / f"block_{block.line}"
    source.write_text("\n".join([*includes, body, "int main(void) { return block_body(); }\n"]))
    result = execute(compile_command(setup, setup.cc, ["-std=c99", "-pedantic"], source, program), cwd=folder)
    require(result, block.name, "this does not compile")
    return [program]


def build_cmake(setup, blocks, folder):
    prefix = folder / "prefix"
    require(execute([setup.cmake, "--install", setup.build, "--prefix", prefix]), "cmake blocks", "cannot be installed")
    built = set()
    for block in blocks:
        code = re.sub(r"\s*#.*", "", block.text)
        if code in built:  # a translation repeats the block
            continue
        built.add(code)
        project = folder / f"cmake_{block.line}"
        project.mkdir()
        program = "#include <cuflash/flash_attention.h>\nint main() { return cuflash_version()[0] == 0; }\n"
        (project / "app.cpp").write_text(program)
        head = ["cmake_minimum_required(VERSION 3.25)", "project(user CXX)", "add_executable(app app.cpp)"]
        (project / "CMakeLists.txt").write_text("\n".join([*head, block.text]))
        require(execute([setup.cmake, "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={prefix}",
                         f"-DCMAKE_CXX_COMPILER={setup.cxx}"]), block.name, "cannot be configured")
        require(execute([setup.cmake, "--build", project / "build"]), block.name, "cannot be built")
        require(execute([project / "build" / "app"]), block.name, "the program fails")


def run_sh(setup, block):
    environment = {**os.environ, "PATH": f"{setup.cli.parent}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        environment["CUFLASH_CACHE_DIR"] = cache  # keeps tuned choices away from this machine's user
        script = block.marks.get("with", "") + "\n" + block.text
        result = execute(["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment)
    return require(result, block.name, "this block fails")
