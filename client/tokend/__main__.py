"""`python -m tokend` is the command `tokend`."""

import sys

from tokend.cli import main

if __name__ == "__main__":
    sys.exit(main())
