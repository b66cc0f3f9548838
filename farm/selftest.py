"""`python -m farm.selftest`: a door to `farm.commands.selftest`."""

import sys

from farm.commands.selftest import main

if __name__ == "__main__":
    sys.exit(main())
