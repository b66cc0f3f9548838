"""What is validated: everything that runs inside a device process (needs numpy and ml_dtypes alone)."""

from tasks.catalogs.user.ops import UserOp, op
from tasks.catalogs.user.own_autograd import autograd
