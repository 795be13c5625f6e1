"""What a token takes, of turns with a lesson beside them and of turns without, on a clock of the test's own."""

from daemon.serving.token_times import TokenTimes


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_turn_counts_as_beside_a_lesson_if_one_walked_at_any_moment_since_its_first_token() -> None:
    clock = Clock()
    times = TokenTimes(clock)
    assert (times.ms, times.ms_alone, times.ms_beside_lessons) == (None, None, None)
    clock.now = 10.0
    times.turn_ended(seconds=1.0, tokens=10)
    times.lesson_started("one")
    times.turn_ended(seconds=2.0, tokens=10)
    times.lesson_ended("one")
    clock.now = 11.0
    times.turn_ended(seconds=1.5, tokens=5)
    times.turn_ended(seconds=0.5, tokens=5)
    assert times.ms_alone == 1000 * (1.0 + 0.5) / 15
    assert times.ms_beside_lessons == 1000 * (2.0 + 1.5) / 15
    assert times.ms == 1000 * 5.0 / 30


def test_a_lesson_that_never_walked_was_beside_nobody() -> None:
    times = TokenTimes(Clock())
    times.lesson_ended("refused at once")
    times.turn_ended(seconds=1.0, tokens=1)
    assert times.ms_beside_lessons is None
