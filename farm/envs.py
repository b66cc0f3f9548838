"""`python -m farm.envs`: the same as `farm envs`."""

import sys

from farm.commands.envs import main

if __name__ == "__main__":
    sys.exit(main())
