"""The description of a fault that teeth.py plants."""

from typing import NamedTuple


class Fault(NamedTuple):
    name: str
    find: str
    replace: str
    first_test: str = "sweep_test"  # only saves time: any test may catch any fault
    needs: str = ""  # the line is reached only on processors with one of these features of /proc/cpuinfo: "a|b"
