"""`python -m farm.launch`: the same as `farm run`."""

import sys

from farm.exits import open_command_door

main = open_command_door("run")

if __name__ == "__main__":
    sys.exit(main())
