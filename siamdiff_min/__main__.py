"""`python -m siamdiff_min COMMAND`: the command `siamdiff` of a clone that is not installed."""

import sys

from .cli import main

sys.exit(main())
