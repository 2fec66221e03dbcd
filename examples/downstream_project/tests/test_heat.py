import numpy as np
import pytest
from heat import Plate

from clmemlife import MemHandle, statistics


def hot_border(n):
    plate = np.zeros((n, n), np.float32)
    plate[0] = 100.0
    return plate


def reference(plate, steps, rate=np.float32(0.1)):
    for _ in range(steps):
        inner = plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:] - 4 * plate[1:-1, 1:-1]
        plate = plate.copy()
        plate[1:-1, 1:-1] += rate * inner
    return plate


@pytest.mark.parametrize("steps", [0, 1, 50])
def test_steps_agree_with_numpy(cl_queue, steps):
    start = hot_border(32)
    with Plate(cl_queue, start) as plate:
        plate.run(steps)
        assert np.allclose(plate.temperatures(), reference(start, steps), rtol=1e-4, atol=1e-4)


def test_an_out_of_order_queue_gives_the_same(cl_out_of_order_queue):
    with Plate(cl_out_of_order_queue, hot_border(16)) as plate:
        plate.run(20)
        assert np.allclose(plate.temperatures(), reference(hot_border(16), 20), rtol=1e-4, atol=1e-4)


def test_two_plates_on_two_queues(cl_two_queues):
    first, second = cl_two_queues
    with Plate(first, hot_border(16)) as one, Plate(second, hot_border(16)) as other:
        one.run(10)
        other.run(10)
        assert np.array_equal(one.temperatures(), other.temperatures())


def test_a_plate_needs_two_buffers_and_gives_them_back(cl_queue, cl_leak_check):
    before = statistics().current_bytes
    with Plate(cl_queue, hot_border(64)):
        assert statistics().current_bytes - before == 2 * 64 * 64 * 4
    assert cl_leak_check.leaks() == []


def test_a_buffer_from_the_factory_is_released_by_it(cl_buffer_factory):
    assert cl_buffer_factory(256, label="scratch").size == 256


@pytest.mark.cl_leaks(allow=1, reason="shows the marker: the name outlives the test")
def test_a_leak_that_is_allowed(cl_context):
    test_a_leak_that_is_allowed.kept = MemHandle.create_buffer(cl_context, 64)
