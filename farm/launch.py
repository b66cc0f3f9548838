"""`python -m farm.launch`: the same as `farm run`."""

import sys

from farm.exits import door

main = door("run")

if __name__ == "__main__":
    sys.exit(main())
