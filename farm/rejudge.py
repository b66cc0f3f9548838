"""`python -m farm.rejudge`: a door to `farm.commands.rejudge`."""

import sys

from farm.commands.rejudge import main

if __name__ == "__main__":
    sys.exit(main())
