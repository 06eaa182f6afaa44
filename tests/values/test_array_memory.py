"""Arrays leave nothing behind: a worker writes many thousands of them, of every length."""

import tracemalloc

from holdfast.values import arrays


def test_arrays_of_many_lengths_take_no_memory() -> None:
    arrays.doubles([0.5])
    tracemalloc.start()
    try:
        for length in range(1000, 1090):
            arrays.doubles([0.5] * length)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 50_000, "one of these alone has 12,000 bytes"
