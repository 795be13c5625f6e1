"""The pace: chunks shrink while segments take longer than a decode step, and grow back when they need not."""

import pytest

from engine.pace import Pace


def test_segments_longer_than_a_decode_step_halve_the_rows_down_to_the_least() -> None:
    pace = Pace(256)
    seen = []
    for _ in range(5):
        pace.served(0.030)
        pace.walked(pace.chunk_rows, 0.031)
        seen.append(pace.chunk_rows)
    assert seen == [128, 64, 32, 32, 32]


def test_a_short_run_with_long_segments_halves_its_own_rows() -> None:
    pace = Pace(256)
    pace.served(0.030)
    pace.walked(100, 0.2)
    assert pace.chunk_rows == 50


def test_rows_grow_back_when_full_chunks_take_a_quarter_of_the_time() -> None:
    pace = Pace(256)
    for rows, seconds, then in [(256, 1.0, 128), (64, 0.001, 128), (128, 0.006, 128), (128, 0.004, 256)]:
        pace.served(0.020)
        pace.walked(rows, seconds)
        assert pace.chunk_rows == then, f"{rows} rows took {seconds} s; a short run says nothing of a full chunk"
    pace.walked(256, 0.004)
    assert pace.chunk_rows == 256


def test_nobody_who_is_not_there_is_waited_for() -> None:
    pace = Pace(256)
    pace.walked(256, 1.0)
    assert pace.chunk_rows == 256
    pace.served(0.020)
    pace.walked(256, 1.0)
    assert pace.chunk_rows == 128
    pace.walked(128, 1.0)
    assert pace.chunk_rows == 256, "nobody was served beside the second walk"


def test_a_segment_may_take_between_20_and_250_milliseconds() -> None:
    pace = Pace(256)
    bounds = []
    for step in (0.0, 0.001, 0.1, 9.0):
        pace.served(step)
        bounds.append(pace.segment_seconds)
    assert bounds == [0.020, 0.020, pytest.approx(0.075), 0.250]


def test_rows_never_fall_below_a_smaller_setting() -> None:
    pace = Pace(4)
    pace.served(0.020)
    pace.walked(4, 5.0)
    assert pace.chunk_rows == 4
