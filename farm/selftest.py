"""`python -m farm.selftest`: the same as `farm selftest`."""

import sys

from farm.commands.selftest import main

if __name__ == "__main__":
    sys.exit(main())
