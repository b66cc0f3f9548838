"""`python -m farm.gradcheck`: the same as `farm gradcheck`."""

import sys

from farm.commands.gradcheck import main

if __name__ == "__main__":
    sys.exit(main())
