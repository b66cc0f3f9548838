"""`python -m farm.envs`: the same as `farm envs`."""

import sys

from farm.exits import door

main = door("envs")

if __name__ == "__main__":
    sys.exit(main())
