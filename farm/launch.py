"""`python -m farm.launch`: the same as `farm run`."""

import sys

from farm.commands.run import main

if __name__ == "__main__":
    sys.exit(main())
