"""`python -m farm.report`: a door to `farm.commands.report`."""

import sys

from farm.commands.report import main

if __name__ == "__main__":
    sys.exit(main())
