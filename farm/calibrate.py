"""`python -m farm.calibrate`: a door to `farm.commands.calibrate`."""

import sys

from farm.commands.calibrate import main

if __name__ == "__main__":
    sys.exit(main())
