"""`python -m farm.minimise`: the same as `farm minimise`."""

import sys

from farm.exits import door

main = door("minimise")

if __name__ == "__main__":
    sys.exit(main())
