"""`python -m farm.gradcheck`: a door to `farm.commands.gradcheck`."""

import sys

from farm.commands.gradcheck import main

if __name__ == "__main__":
    sys.exit(main())
