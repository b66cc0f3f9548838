"""`python -m farm.reproduce`: the same as `farm reproduce`."""

import sys

from farm.exits import door

main = door("reproduce")

if __name__ == "__main__":
    sys.exit(main())
