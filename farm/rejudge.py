"""`python -m farm.rejudge`: the same as `farm rejudge`."""

import sys

from farm.commands.rejudge import main

if __name__ == "__main__":
    sys.exit(main())
