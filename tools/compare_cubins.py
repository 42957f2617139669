#!/usr/bin/env python3
"""Shows whether a change of the kernel sources changed the machine code.

  tools/compare_cubins.py before.pack after.pack     compares two packs, kernel by kernel
  tools/compare_cubins.py REVISION [pack flags]      builds the tool at REVISION and here, packs with both, and compares

The tool compares every section of a cubin except the tables of symbol names, which hold the mangled names of C++
constants. If a constant becomes an enumerator, its symbol disappears, and relocations and symbol numbers change with
it; such kernels are counted separately, as having the same instructions. Kernels are matched by their position in the
pack, so that a renamed family still finds its counterpart. Without pack flags the set has one kernel of every family:
sm_90a and sm_80, bf16 and f32, head size 128. Exits with 1 if instructions differ.
"""

import os
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEFAULT_FLAGS = ["--arch", "sm_90a,sm_80", "--dtype", "bf16,f32", "--head-dim", "128"]

# The layout that src/cuda/jit/archive.h describes.
HEADER = struct.Struct("<8sII32s")
ROW = struct.Struct("<32s32sQQQ")


def kernels_of(pack: pathlib.Path) -> list[tuple[str, bytes]]:
    data = pack.read_bytes()
    magic, version, count, _ = HEADER.unpack_from(data)
    if magic != b"cuflash\n" or version != 1:
        sys.exit(f"{pack} is not a pack of version 1")
    kernels = []
    for n in range(count):
        _, _, offset, name_size, cubin_size = ROW.unpack_from(data, HEADER.size + n * ROW.size)
        name = data[offset:offset + name_size].decode()
        kernels.append((name, data[offset + name_size:offset + name_size + cubin_size]))
    return kernels


def sections_of(cubin: bytes) -> dict[str, bytes]:
    """The sections of a 64-bit ELF file, except its symbol tables."""
    table, = struct.unpack_from("<Q", cubin, 40)
    entry_size, count, names_index = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + n * entry_size) for n in range(count)]
    names = cubin[headers[names_index][4]:][:headers[names_index][5]]
    sections = {}
    for name, kind, _, _, offset, size, *_ in headers:
        text = names[name:names.index(b"\0", name)].decode()
        no_bits = 8
        if text not in (".strtab", ".symtab"):
            sections[text] = bytes(str(size), "ascii") if kind == no_bits else cubin[offset:offset + size]
    return sections


def code_of(sections: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in sections.items() if name.startswith(".text")}


def compare(before: pathlib.Path, after: pathlib.Path) -> int:
    old, new = kernels_of(before), kernels_of(after)
    if len(old) != len(new):
        print(f"{len(old)} kernels before, {len(new)} after")
        return 1
    identical = same_code = 0
    for (name, x), (new_name, y) in zip(old, new):
        before_sections, after_sections = sections_of(x), sections_of(y)
        if before_sections == after_sections:
            identical += 1
        elif code_of(before_sections) == code_of(after_sections):
            same_code += 1
        else:
            print(f"differs: {name}" + (f" -> {new_name}" if name != new_name else ""))
    print(f"{identical} of {len(old)} cubins are identical but for symbol names, {same_code} more have the same instructions")
    return int(identical + same_code != len(old))


def packed(tree: pathlib.Path, flags: list[str], out: pathlib.Path) -> pathlib.Path:
    build = tree / "build" / "release"
    subprocess.run(["cmake", "-S", tree, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DCUFLASH_BUILD_TESTS=OFF"],
                   check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build, "--target", "cuflash_cli", "--parallel"], check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run([build / "bin" / "cuflash", "pack", *flags, "-o", out], check=True,
                   env={**os.environ, "CUFLASH_CACHE_DIR": str(out) + ".cache"})
    return out


def main() -> int:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 2
    if len(arguments) == 2 and all(pathlib.Path(name).is_file() for name in arguments):
        return compare(*map(pathlib.Path, arguments))
    revision, flags = arguments[0], arguments[1:] or DEFAULT_FLAGS
    with tempfile.TemporaryDirectory() as folder:
        old = pathlib.Path(folder) / "tree"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", old, revision], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return compare(packed(old, flags, pathlib.Path(folder) / "before.pack"),
                           packed(ROOT, flags, pathlib.Path(folder) / "after.pack"))
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", old], check=True)


if __name__ == "__main__":
    sys.exit(main())
