"""The catalog `serving`: every op has a second oracle, written otherwise, that agrees with its reference."""

import ml_dtypes
import numpy as np
import pytest

from tasks.catalogs.serving.catalog import Serving
from tasks.catalogs.serving.ops import OPS
from tasks.catalogs.serving.reference import fp8_cache_attention
from tasks.model import Group

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


@pytest.mark.parametrize("name", OPS)
def test_references_agree_with_torch_in_float64(name: str) -> None:
    for sample in Serving().samples(Group(f"serving:{name}", "", "bfloat16", 2), 0):
        assert sample.failure is None, sample.failure
        (second,), (leaf,) = sample.others, sample.expected
        assert leaf.reference is not None
        assert np.allclose(second.references[0], leaf.reference, rtol=1e-12, atol=1e-13)


def test_bytes_of_a_cache_are_the_numbers_that_float8_has() -> None:
    codes = np.array([x for x in range(256) if x & 127 != 127], np.uint8)
    # A single key has the whole share, so its value is what comes out.
    ones = np.zeros((1, 1, codes.size), np.uint8)
    made = fp8_cache_attention(np.ones((1, codes.size)), ones, codes[None, None], 1.0, 0.5)
    assert np.array_equal(made[0], 0.5 * codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64))
