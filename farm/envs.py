"""`python -m farm.envs`: a door to `farm.fleet.envs`."""

import sys

from farm.fleet.envs import main

if __name__ == "__main__":
    sys.exit(main())
