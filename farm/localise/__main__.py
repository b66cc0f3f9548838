"""`python -m farm.localise`: the same as `farm localise`."""

import sys

from farm.exits import door

main = door("localise")

if __name__ == "__main__":
    sys.exit(main())
