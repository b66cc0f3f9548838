"""`python -m farm.rejudge`: the same as `farm rejudge`."""

import sys

from farm.exits import door

main = door("rejudge")

if __name__ == "__main__":
    sys.exit(main())
