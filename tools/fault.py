"""The description of a fault that teeth.py plants."""

from typing import NamedTuple


class Fault(NamedTuple):
    name: str
    find: str
    replace: str
    first_test: str = "sweep_test"  # only saves time: any test may catch any fault
    needs: str = ""  # a feature of the processor without which the faulty line is never reached, as /proc/cpuinfo names it
