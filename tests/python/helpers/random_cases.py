"""The number of random cases that a test draws."""

import os

SCALE = float(os.environ.get("CUFLASH_TEST_SCALE", "1"))


def examples(count: int) -> int:
    """The value of hypothesis.settings(max_examples=...) for a test that draws `count` cases at scale 1."""
    return max(1, round(count * SCALE))
