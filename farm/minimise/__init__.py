"""Failing cases made small: between the search and the backend, what is kept of it, the finding, the issue's text. Called, the package is
the client's function of the same name."""

import sys

from farm.doors import CallableRoom

sys.modules[__name__].__class__ = CallableRoom
