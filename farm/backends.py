"""`python -m farm.backends`: the same as `farm backends`."""

import sys

from farm.commands.backends import main

if __name__ == "__main__":
    sys.exit(main())
