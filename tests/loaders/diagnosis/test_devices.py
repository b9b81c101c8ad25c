"""Simulated devices: their names and their speeds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from loaders.diagnosis.devices import parse_simulated


@pytest.mark.parametrize(
    "text",
    [
        *("simulated:", "simulated:fast", "simulated:0", "simulated:-1", "simulated:nan"),
        *("simulated:9,step-ms=-1", "simulated:9,speed=3", "simulated:9,transfer=0", "simulated:9,step-ms=inf"),
    ],
)
def test_a_malformed_device_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="expected simulated:IMAGES_PER_S"):
        parse_simulated(text)


@given(st.floats(1, 1e6), st.floats(1, 1e6), st.floats(0, 100), st.floats(0, 100))
def test_a_simulated_device_has_the_rates_in_its_name(rate, transfer, step_ms, transfer_ms):
    device = parse_simulated(f"simulated:{rate},transfer={transfer},step-ms={step_ms},transfer-ms={transfer_ms}")

    assert (device.images_per_s, device.transfer_images_per_s) == (rate, transfer)
    assert (device.step_s, device.transfer_s) == pytest.approx((step_ms / 1e3, transfer_ms / 1e3))
