"""Why tests were skipped, in the words that tools/skips.py prints."""

import re
from collections import Counter

# The words of pytest.importorskip. Users know the module by the name of its project.
_NO_MODULE = re.compile(r"could not import '(\w+)[^']*': .*")
_PROJECTS = {"torch": "PyTorch"}


def skips_by_reason(reports) -> Counter:
    """{reason: count}. A file that skips itself is one report, however many tests it has, and counts once."""
    found = Counter()
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ").splitlines()[0]
        missing = _NO_MODULE.fullmatch(reason)
        if missing:
            reason = f"{_PROJECTS.get(missing.group(1), missing.group(1))} is not installed"
        found[reason if report.when == "call" or report.when == "setup" else f"{reason} (whole files)"] += 1
    return found
