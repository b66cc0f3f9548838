"""`python -m farm.reproduce`: a door to `farm.commands.reproduce`."""

import sys

from farm.commands.reproduce import main

if __name__ == "__main__":
    sys.exit(main())
