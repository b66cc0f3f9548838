"""`python -m farm.backends`: the same as `farm backends`."""

import sys

from farm.exits import door

main = door("backends")

if __name__ == "__main__":
    sys.exit(main())
