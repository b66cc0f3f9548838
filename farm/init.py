"""`python -m farm.init`: the same as `farm init`."""

import sys

from farm.exits import door

main = door("init")

if __name__ == "__main__":
    sys.exit(main())
