"""`python -m farm.gradcheck`: the same as `farm gradcheck`."""

import sys

from farm.exits import door

main = door("gradcheck")

if __name__ == "__main__":
    sys.exit(main())
