"""`python -m farm.report`: the same as `farm report`."""

import sys

from farm.commands.report import main

if __name__ == "__main__":
    sys.exit(main())
