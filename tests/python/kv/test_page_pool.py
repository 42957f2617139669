"""The Python interface of the page pool. Its rules are tested in C++."""

import ast
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cuflash
from random_cases import examples
from cuflash import PagePool, _core


def grown(pool, tokens):
    sequence = pool.start()
    assert pool.append(sequence, tokens)
    return sequence


def test_a_pool_needs_no_array_library_until_a_table_is_made():
    code = """
import sys, cuflash
pool = cuflash.PagePool(8, 4, 2)
assert pool.append(pool.start(), 5)
assert not {"numpy", "torch"} & set(sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_sequences_grow_and_tables_show_them():
    pool = PagePool(pages=8, page_size=4, max_sequences=3)
    a, b = grown(pool, 6), grown(pool, 1)
    table = pool.block_table([a, b])
    assert table.dtype == np.int32 and table.tolist() == [[0, 1], [2, -1]]
    assert pool.block_table([b, a], 3, unused=0).tolist() == [[2, 0, 0], [0, 1, 0]]
    lengths = pool.lengths([b, a])
    assert lengths.dtype == np.int32 and lengths.tolist() == [1, 6]
    assert pool.pages(a).tolist() == [0, 1]
    assert pool.block_table([]).shape == (0, 0) and pool.pages(pool.start()).shape == (0,)
    assert pool.state(a) == (6, 2, 0, 0, 6)


def test_full_is_an_answer():
    pool = PagePool(pages=2, page_size=4, max_sequences=1, max_pages_per_sequence=4)
    a = grown(pool, 5)
    refused = pool.append(a, 7)
    assert not refused and refused.fit == "pool_full" and (refused.pages, refused.missing_pages) == (1, 1)
    too_long = pool.append(a, 12)
    assert not too_long and too_long.fit == "sequence_full" and (too_long.pages, too_long.missing_pages) == (0, 1)
    assert pool.start() is None and pool.fork(a) is None
    assert pool.state(a).tokens == 5


def test_a_fork_is_copied_on_its_first_write():
    pool = PagePool(pages=8, page_size=4, max_sequences=3)
    a = grown(pool, 6)
    b = pool.fork(a)
    assert a != b and len({a, b}) == 2
    assert pool.statistics().shared_pages == 2
    copy = pool.append(b, 1).copy
    assert (copy.source, copy.destination, copy.tokens) == (1, 2, 2)
    assert pool.append(a, 1).copy is None
    assert pool.pages(pool.fork(a, 3)).tolist() == [0]


def test_trimming_keeps_sinks_and_window():
    pool = PagePool(pages=16, page_size=4, max_sequences=1)
    a = grown(pool, 30)
    trimmed = pool.trim(a, sinks=3, window=10)
    assert trimmed == (1, 4, 4)
    assert pool.state(a)._asdict() == {"tokens": 14, "pages": 4, "sinks": 4, "dropped": 16, "position": 30}
    pool.truncate(a, 3)
    assert pool.state(a).position == 3
    pool.release(a)
    assert pool.statistics()._asdict() == {
        "pages": 16,
        "used_pages": 0,
        "free_pages": 16,
        "shared_pages": 0,
        "table_entries": 0,
        "sequences": 0,
        "tokens": 0,
        "wasted_tokens": 0,
    }


def test_tables_are_written_into_given_arrays():
    pool = PagePool(pages=8, page_size=4, max_sequences=2)
    both = [grown(pool, 6), grown(pool, 9)]
    memory = np.full((2, 6), 77, np.int32)
    view = memory[:, :4]
    assert pool.block_table(both, out=view) is view
    assert memory.tolist() == [[0, 1, -1, -1, 77, 77], [2, 3, 4, -1, 77, 77]]
    lengths = np.zeros(2, np.int32)
    pool.lengths(both, out=lengths)
    assert lengths.tolist() == [6, 9]


def test_tables_are_written_into_tensors():
    torch = pytest.importorskip("torch")
    pool = PagePool(pages=8, page_size=4, max_sequences=2)
    both = [grown(pool, 6), grown(pool, 9)]
    table = pool.block_table(both, out=torch.empty(2, 3, dtype=torch.int32))
    assert table.tolist() == [[0, 1, -1], [2, 3, 4]]


def read_only(shape):
    array = np.zeros(shape, np.int32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "error, words, call",
    [
        (ValueError, "^pages: got 0", lambda p, s: PagePool(0, 1, 1)),
        (ValueError, "^page_size: got -1", lambda p, s: PagePool(1, -1, 1)),
        (ValueError, "^max_sequences: got 0", lambda p, s: PagePool(1, 1, 0)),
        (ValueError, "^max_pages_per_sequence: got 0", lambda p, s: PagePool(1, 1, 1, 0)),
        (ValueError, "^tokens: got -1", lambda p, s: p.append(s, -1)),
        (ValueError, "^tokens: got -1", lambda p, s: p.fork(s, -1)),
        (ValueError, "^tokens: got 7, .* 6", lambda p, s: p.truncate(s, 7)),
        (ValueError, "^sinks: got -1", lambda p, s: p.trim(s, -1, 0)),
        (ValueError, "^sequence: .* released", lambda p, s: (p.release(s), p.release(s))),
        (ValueError, "^sequence: .* another pool", lambda p, s: PagePool(1, 1, 1).state(s)),
        (ValueError, r"^sequences\[1\]: ", lambda p, s: p.lengths([s, (0, 0)])),
        (ValueError, "^block_table: has 1 columns", lambda p, s: p.block_table([s], 1)),
        (ValueError, "^block_table: type f32", lambda p, s: p.block_table([s], out=np.zeros((1, 4), np.float32))),
        (ValueError, "^block_table: is read-only", lambda p, s: p.block_table([s], out=read_only((1, 4)))),
        (ValueError, "^cache_seqlens: dimension 0", lambda p, s: p.lengths([s], out=np.zeros(2, np.int32))),
        (ValueError, "^max_pages: got 4", lambda p, s: p.block_table([s], 4, out=np.zeros((1, 4), np.int32))),
        (TypeError, "not an array", lambda p, s: p.block_table([s], out=[1, 2])),
        (TypeError, "^sequence: got None", lambda p, s: p.append(None, 1)),
        (TypeError, "^tokens: got 1.5", lambda p, s: p.append(s, 1.5)),
    ],
)
def test_errors_name_the_argument(error, words, call):
    pool = PagePool(pages=8, page_size=4, max_sequences=2)
    sequence = grown(pool, 6)
    with pytest.raises(error, match=words):
        call(pool, sequence)
    pool.check()


def test_the_stub_has_the_parameters_of_the_class():
    stub = ast.parse((Path(cuflash.__file__).parent / "_core.pyi").read_text())
    methods = next(c for c in stub.body if isinstance(c, ast.ClassDef) and c.name == "PagePool").body[1:]
    for method in methods:
        documented = re.search(r"\((.*)\)", getattr(_core.PagePool, method.name).__doc__).group(1)
        assert [a.arg for a in method.args.args[1:]] == re.findall(r"(\w+):", documented), method.name
    public = {name for name in vars(_core.PagePool) if not name.startswith("_")}
    assert public == {method.name for method in methods} - {"__init__"}


def test_random_histories_keep_every_token():
    for seed in range(examples(30)):
        rng = random.Random(seed)
        pages, page_size = rng.randint(1, 20), rng.choice([1, 2, 3, 8])
        pool = PagePool(pages, page_size, max_sequences=5)
        memory = np.zeros((pages, page_size), np.int64)
        alive, ids = {}, 0
        for _ in range(150):
            sequence = rng.choice(list(alive)) if alive else None
            action = rng.choice(["start", "append", "append", "append", "fork", "trim", "release"])
            if sequence is None or action == "start":
                new = pool.start()
                alive.update({new: []} if new else {})
            elif action == "append" and (room := pool.append(sequence, count := rng.randint(0, 2 * page_size))):
                if room.copy:
                    memory[room.copy.destination, : room.copy.tokens] = memory[room.copy.source, : room.copy.tokens]
                table = pool.pages(sequence)
                for _ in range(count):
                    ids, t = ids + 1, len(alive[sequence])
                    memory[table[t // page_size], t % page_size] = ids
                    alive[sequence].append(ids)
            elif action == "fork" and (child := pool.fork(sequence)):
                alive[child] = list(alive[sequence])
            elif action == "trim" and pool.state(sequence).dropped == 0:
                trimmed = pool.trim(sequence, rng.randint(0, page_size), rng.randint(0, 3 * page_size))
                first = trimmed.first_page * page_size
                del alive[sequence][first : first + trimmed.pages * page_size]
            elif action == "release":
                pool.release(sequence)
                del alive[sequence]
            pool.check()
            for sequence, tokens in alive.items():
                assert memory[pool.pages(sequence)].reshape(-1)[: len(tokens)].tolist() == tokens
        for sequence in alive:
            pool.release(sequence)
        assert pool.statistics().used_pages == 0
