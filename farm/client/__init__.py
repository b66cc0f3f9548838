"""What a kernel's author calls from a script, a test or a notebook, by way of `farm`: a function with its inputs as they are given (`Kernel`, `Case`), judged, its backward too (`GradientCase`), fuzzed, made small or run again in this process."""

from farm.client import strategies
from farm.client.autograd_checks import check_autograd, validate_autograd_function
from farm.client.judging import assert_correct, fuzz
from farm.client.kernels import ClientError
from farm.client.minimising import minimise, minimize
from farm.client.reproducing import reproduce
from farm.client.submissions import Verdict, judge
from farm.client.validating import validate
