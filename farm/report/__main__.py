"""`python -m farm.report`: the same as `farm report`."""

import sys

from farm.exits import door

main = door("report")

if __name__ == "__main__":
    sys.exit(main())
