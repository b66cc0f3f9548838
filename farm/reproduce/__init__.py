"""One case of a lake again: found, run, shown, and written down as a finding. Called, the package is the client's function of the same name."""

import sys

from farm.doors import CallableRoom

sys.modules[__name__].__class__ = CallableRoom
