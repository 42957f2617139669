"""`python -m cuflash.plot`"""

import sys

from .command import main

sys.exit(main())
