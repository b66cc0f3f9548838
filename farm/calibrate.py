"""`python -m farm.calibrate`: the same as `farm calibrate`."""

import sys

from farm.exits import door

main = door("calibrate")

if __name__ == "__main__":
    sys.exit(main())
