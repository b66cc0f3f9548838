"""`python -m farm.node`: the same as `farm node`."""

import sys

from farm.exits import door

main = door("node")

if __name__ == "__main__":
    sys.exit(main())
