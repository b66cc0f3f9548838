"""`python -m farm.backends`: a door to `farm.commands.backends`."""

import sys

from farm.commands.backends import main

if __name__ == "__main__":
    sys.exit(main())
