"""`python -m farm.calibrate`: the same as `farm calibrate`."""

import sys

from farm.commands.calibrate import main

if __name__ == "__main__":
    sys.exit(main())
