"""`python -m serving`, the same as `weft`."""

import sys

from serving.cli import main

sys.exit(main())
