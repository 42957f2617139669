"""Pictures and a report from results files: `python -m cuflash.plot`, or main() with its arguments.

matplotlib is imported when the first picture is drawn, and by nothing else in cuflash.
"""

from .command import main

__all__ = ["main"]
