"""`python -m farm.reproduce`: the same as `farm reproduce`."""

import sys

from farm.commands.reproduce import main

if __name__ == "__main__":
    sys.exit(main())
