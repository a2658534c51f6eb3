"""On a GPU: what its own machine code makes of every operation, beside the XLA form."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.kernels_pallas.compare import assert_close, value_and_gradients
from tests.kernels_pallas.operations import OPERATIONS


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPERATIONS)
def test_kernels_on_the_device_equal_the_xla_form(name: str) -> None:
    function, make = OPERATIONS[name]
    arguments = make(9, np.float32)
    pallas, xla = (
        value_and_gradients(functools.partial(function, implementation=form), arguments)
        for form in ("pallas", "xla")
    )
    assert_close(pallas, xla, reduction=9 * 16)
