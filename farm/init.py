"""`python -m farm.init`: a door to `farm.commands.init`."""

import sys

from farm.commands.init import main

if __name__ == "__main__":
    sys.exit(main())
