"""How many random cases a test draws."""

import os

SCALE = float(os.environ.get("CUFLASH_TEST_SCALE", "1"))


def examples(count: int) -> int:
    """For hypothesis.settings(max_examples=...): count at scale 1."""
    return max(1, round(count * SCALE))
