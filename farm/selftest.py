"""`python -m farm.selftest`: the same as `farm selftest`."""

import sys

from farm.exits import door

main = door("selftest")

if __name__ == "__main__":
    sys.exit(main())
