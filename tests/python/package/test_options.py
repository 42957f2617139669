"""The tables of cuflash/_options.py against everything else that lists options: the extension module, which is made from
python/src/options.h, its stubs, and the signatures and documentation that callers see."""

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import cuflash
from cuflash import _attention, _core, _kv_cache
from cuflash._options import (ARRAYS, CACHE_ARRAYS, CACHE_EXECUTION, CACHE_OPTIONS, EXECUTION, OPTIONAL_NUMBER, OPTIONS,
                              PACKED_ONLY, checker, keywords, names)

ATTENTION = keywords(ARRAYS, (*OPTIONS, *EXECUTION))
DENSE = {name: default for name, default in ATTENTION.items() if name not in PACKED_ONLY}
CACHE = keywords(CACHE_ARRAYS, (*CACHE_OPTIONS, *CACHE_EXECUTION))

BACKWARD = ("dout", "dlse", "dq", "dk", "dv", "dbias", "dsink")
CORE = {  # function -> its arrays, the optional arrays, the options, and how it runs
    "forward": (("q", "k", "v", "out", "lse"), ARRAYS, OPTIONS,
                ("stream", "allocate", "num_threads", "check_lengths", "deterministic")),
    "backward": (("q", "k", "v", "out", "lse", *BACKWARD), ARRAYS, OPTIONS,
                 ("stream", "allocate", "num_threads", "check_lengths", "deterministic")),
    "attend_cache": (("q", "k_cache", "v_cache", "k", "v", "out", "lse"), CACHE_ARRAYS, CACHE_OPTIONS,
                     ("stream", "allocate", "num_threads", "check_lengths")),
}


def stub_of(name):
    functions = ast.parse(Path(_core.__file__).with_name("_core.pyi").read_text()).body
    return next(function for function in functions if getattr(function, "name", "") == name)


@pytest.mark.parametrize("name", CORE)
def test_the_extension_module_takes_the_options_of_the_table_in_its_order(name):
    arrays, optional, options, runtime = CORE[name]
    signature = re.search(rf"{name}\((.*)\)", getattr(_core, name).__doc__).group(1)
    assert re.findall(r"(\w+):", signature) == [*arrays, *optional, *names(options), *runtime]


@pytest.mark.parametrize("name", CORE)
def test_stubs_have_the_types_of_the_table(name):
    arrays, optional, options, _ = CORE[name]
    found = {argument.arg: ast.unparse(argument.annotation) for argument in stub_of(name).args.args}
    expected = {option.name: option.kind.stub for option in options}
    expected.update({array: "Optional[Array]" for array in optional if array != "cache_seqlens"})
    assert {option: found[option] for option in expected} == expected


def keyword_arguments(function, after=()):
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY or p.name in after}


def test_signatures_of_any_library():
    assert keyword_arguments(cuflash.attention) == DENSE
    assert keyword_arguments(cuflash.attention_with_cache) == CACHE


def test_signatures_of_torch():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from cuflash import _torch
    from cuflash._torch import arguments, kv_cache

    assert keyword_arguments(_torch.attention) == ATTENTION
    assert keyword_arguments(kv_cache.attention_with_cache) == CACHE
    assert tuple(inspect.signature(arguments.extras).parameters) == ARRAYS


def test_signature_of_jax():
    pytest.importorskip("jax", reason="jax is not installed")
    import cuflash.jax

    assert keyword_arguments(cuflash.jax.attention) == ATTENTION


def documented(function):
    """The names that stand before a colon in the list of arguments."""
    text = re.search(r"Args:\n(.*?)\n\n", inspect.getdoc(function), re.DOTALL).group(1)
    listed = re.findall(r"^ {4}([\w, ]+):", text, re.MULTILINE)
    return {name for line in listed for name in line.split(", ")} | set(re.findall(r"\. (\w+): ", text))


def test_every_option_is_documented():
    assert documented(cuflash.attention) == {"q", "k", "v", *DENSE}
    assert documented(cuflash.attention_with_cache) == {"q", "k_cache", "v_cache", "k", "v", *CACHE}


def recorded(module, monkeypatch):
    """The arguments with which the public functions of the module call an implementation."""
    calls = []

    class Implementation:
        def __getattr__(self, name):
            return lambda *arguments, **options: calls.append((arguments, options)) or arguments[0]

    monkeypatch.setattr(module, "_implementation", lambda *_: Implementation())
    return calls


def test_options_reach_the_implementation_unchanged(monkeypatch):
    q = np.ones((1, 1, 1, 1))
    given = {name: object() for name in DENSE} | {"return_lse": False}
    calls = recorded(_attention, monkeypatch)
    cuflash.attention(q, q, q, **given)
    assert calls[0][1] == given
    given = {name: object() for name in CACHE}
    calls = recorded(_kv_cache, monkeypatch)
    cuflash.attention_with_cache(q, q, q, **given)
    assert calls[0][1] == given


def test_the_handlers_of_xla_know_exactly_the_attributes_of_the_table():
    numbers = {name: value for name, value in checker((*OPTIONS, *EXECUTION))({}).items() if name != "layout"}
    attributes = {name: value or 0 for name, value in numbers.items()}
    attributes |= {f"has_{option.name}": 0 for option in OPTIONS if option.kind is OPTIONAL_NUMBER}
    shapes = [(name, "float32", (1, 1, 2, 4)) for name in ("q", "k", "v", "out")]
    _core.xla_check("forward", "bhsd", shapes, attributes)
    with pytest.raises(RuntimeError, match="attribute no_such_option is not known here"):
        _core.xla_check("forward", "bhsd", shapes, {**attributes, "no_such_option": 0})


def test_options_of_a_backward_pass_are_checked_by_name():
    q = np.ones((1, 1, 2, 4), np.float32)
    for wrong in ("no_such_option", "max_seqlen_q"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{wrong}'"):
            cuflash.explain(q, q, q, **{wrong: 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'bias'"):
        cuflash.explain_with_cache(q, q, q, bias=q)
