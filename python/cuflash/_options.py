"""Every option of attention and of attention_with_cache, defined once, in the order in which `_core` takes them.

The checks, the arguments of `_core`, the schemas of PyTorch's operators and the attributes of the XLA call derive from
these tables. python/src/options.h has the same lists for C++. tests/python/package/test_options.py compares the tables
with the extension module, its stubs and the signatures that callers see.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from ._values import count, flag, number, optional_number, pair, seed, whole
from ._values import layout as layout_named


class Kind(NamedTuple):
    """The type of an option's values."""

    check: Callable[[Any, str], Any]  # (the caller's value, the option's name) -> the value that `_core` takes
    stub: str  # the type in _core.pyi
    schema: str  # the type in a PyTorch operator
    attribute: str  # the type of the XLA attribute: "f64" or "s64", which also carries the bits of a seed


LAYOUT = Kind(lambda value, name: layout_named(value, ("bhsd", "bshd", "thd")), "str", "str", "str")
FLAG = Kind(flag, "bool", "bool", "s64")
NUMBER = Kind(number, "float", "float", "f64")
OPTIONAL_NUMBER = Kind(optional_number, "Optional[float]", "float?", "f64")
WINDOW_SIDE = Kind(whole, "int", "SymInt", "s64")  # callers pass the two sides as window
COUNT = Kind(count, "int", "SymInt", "s64")
THREADS = COUNT._replace(schema="int")
SEED = Kind(seed, "int", "Tensor?", "s64")  # an operator takes seed and offset as one tensor, rng_state


class Option(NamedTuple):
    name: str
    kind: Kind
    default: Any


ARRAYS: Tuple[str, ...] = ("alibi_slopes", "bias", "mask", "sink", "cu_seqlens_q", "cu_seqlens_k", "seqlens_q",
                           "seqlens_k")
"""Optional arrays of attention: those that change the scores, and lengths. _core.pyi has their shapes."""

OPTIONS: Tuple[Option, ...] = (
    Option("layout", LAYOUT, "bhsd"),
    Option("scale", OPTIONAL_NUMBER, None),
    Option("causal", FLAG, False),
    Option("top_left", FLAG, False),
    Option("window_left", WINDOW_SIDE, -1),
    Option("window_right", WINDOW_SIDE, -1),
    Option("softcap", NUMBER, 0.0),
    Option("dropout_p", NUMBER, 0.0),
    Option("dropout_seed", SEED, None),
    Option("dropout_offset", SEED, 0),
    Option("max_seqlen_q", COUNT, 0),
    Option("max_seqlen_k", COUNT, 0),
)
"""The options of attention that change the result and are not arrays."""

EXECUTION: Tuple[Option, ...] = (Option("num_threads", THREADS, 0), Option("deterministic", FLAG, False))
"""The options that say how attention runs; they do not change what it computes."""

PACKED_ONLY = ("layout", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
"""Options for packed sequences and other layouts, which the PyTorch and JAX functions have and cuflash.attention
lacks."""

CACHE_ARRAYS: Tuple[str, ...] = ("cache_seqlens", "block_table", "cache_batch_idx", "cache_leftpad", "cu_seqlens_new",
                                 "seqlens_new", "rotary_cos", "rotary_sin", "alibi_slopes", "sink", "cu_seqlens_q",
                                 "seqlens_q")
"""The arrays of attention_with_cache besides q, k, v and the caches; all but cache_seqlens are optional."""

CACHE_OPTIONS: Tuple[Option, ...] = (
    Option("layout", LAYOUT, "bhsd"),
    Option("scale", OPTIONAL_NUMBER, None),
    Option("causal", FLAG, False),
    Option("window_left", WINDOW_SIDE, -1),
    Option("window_right", WINDOW_SIDE, -1),
    Option("softcap", NUMBER, 0.0),
    Option("max_seqlen_q", COUNT, 0),
    Option("max_seqlen_new", COUNT, 0),
    Option("rotary_interleaved", FLAG, False),
    Option("rotary_one_position", FLAG, False),
    Option("num_splits", COUNT, 0),
)

CACHE_EXECUTION: Tuple[Option, ...] = (Option("num_threads", THREADS, 0),)


def names(options: Sequence[Option]) -> Tuple[str, ...]:
    return tuple(option.name for option in options)


def keywords(arrays: Sequence[str], options: Sequence[Option]) -> Dict[str, Any]:
    """The keyword arguments of a Python function with these options, and their defaults: window for its two sides."""
    found = {name: None for name in arrays}
    for option in options:
        if option.kind is not WINDOW_SIDE:
            found[option.name] = option.default
    return {**found, "window": (-1, -1), "return_lse": False}


class _Check(NamedTuple):
    """The check of an option. A default value skips the check, because most options of a call have their defaults."""

    default: Any
    type_of_default: type
    checked_default: Any
    function: Callable[[Any, str], Any]


def _check_of(option: Option) -> _Check:
    checked_default = option.kind.check(option.default, option.name)
    return _Check(option.default, type(option.default), checked_default, option.kind.check)


def checker(options: Sequence[Option]) -> Callable[[Mapping[str, Any]], Dict[str, Any]]:
    """Returns a function that turns a caller's arguments, by name, into the values of these options as `_core` takes
    them, in its order and with defaults for missing ones."""
    plan = [(option.name, *_check_of(option)) for option in options]
    has_window = any(option.kind is WINDOW_SIDE for option in options)

    def checked(given: Mapping[str, Any]) -> Dict[str, Any]:
        found = {}
        for name, default, type_of_default, checked_default, function in plan:
            value = given.get(name, default)
            is_default = value is default or (type(value) is type_of_default and value == default)
            found[name] = checked_default if is_default else function(value, name)
        if has_window:
            found["window_left"], found["window_right"] = pair(given.get("window", (-1, -1)), "window")
        return found

    return checked


_CHECKS = {option.name: _check_of(option) for option in (*OPTIONS, *EXECUTION, *CACHE_OPTIONS)}


def check(**given: Any) -> List[Any]:
    """The values of the options of these names as `_core` takes them, in the order given."""
    found = []
    for name, value in given.items():
        default, type_of_default, checked_default, function = _CHECKS[name]
        is_default = value is default or (type(value) is type_of_default and value == default)
        found.append(checked_default if is_default else function(value, name))
    return found


def require_known(given: Mapping[str, Any], known: Mapping[str, Any], function: str) -> None:
    if not given.keys() <= known.keys():
        name = next(name for name in given if name not in known)
        raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")
