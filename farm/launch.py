"""`python -m farm.launch`: a door to `farm.commands.run`."""

import sys

from farm.commands.run import main

if __name__ == "__main__":
    sys.exit(main())
