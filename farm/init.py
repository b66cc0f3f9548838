"""`python -m farm.init`: the same as `farm init`."""

import sys

from farm.commands.init import main

if __name__ == "__main__":
    sys.exit(main())
