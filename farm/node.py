"""`python -m farm.node`: a door to `farm.fleet.node`."""

import sys

from farm.fleet.node import main

if __name__ == "__main__":
    sys.exit(main())
