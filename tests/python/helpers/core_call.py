"""Arguments for calling the extension module directly."""

from cuflash._options import ARRAYS, OPTIONS, checker


def options(layout="bhsd", **changes):
    """Every argument of _core.forward after its arrays: the defaults, with these changes."""
    values = {**dict.fromkeys(ARRAYS), **checker(OPTIONS)({}), "layout": layout, "stream": 0, "allocate": None}
    return {**values, **changes}


def read_only(array):
    array.flags.writeable = False
    return array
