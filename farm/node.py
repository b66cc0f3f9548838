"""`python -m farm.node`: the same as `farm node`."""

import sys

from farm.commands.node import main

if __name__ == "__main__":
    sys.exit(main())
