"""A refused client is told to come back when there is likely room."""

from serving.engine.drain_rate import DrainRate


def test_without_any_departure_the_answer_is_one_second() -> None:
    assert DrainRate().retry_after(1000) == 1.0


def test_the_wait_is_half_of_the_queue_at_the_observed_rate() -> None:
    rate = DrainRate()
    rate.observe(10.0, 1, 105)
    rate.observe(10.5, 5, 100)  # ten a second
    assert abs(rate.retry_after(100) - 5.0) < 1e-9


def test_the_rate_follows_change() -> None:
    rate = DrainRate()
    for second in range(50):
        rate.observe(float(second), 100, 1)
    fast = rate.retry_after(1000)
    for second in range(50, 100):
        rate.observe(float(second), 10, 1)
    assert rate.retry_after(1000) > 2 * fast


def test_steps_without_departures_do_not_count_but_their_time_does() -> None:
    rate = DrainRate()
    rate.observe(0.0, 1, 2)
    rate.observe(1.0, 0, 2)
    rate.observe(2.0, 1, 1)
    assert abs(rate.retry_after(10) - 10.0) < 1e-9


def test_the_wait_is_between_a_second_and_a_minute() -> None:
    rate = DrainRate()
    rate.observe(0.0, 1, 1)
    rate.observe(100.0, 1, 1)
    assert rate.retry_after(1000) == 60.0
    assert rate.retry_after(0) == 1.0


def test_time_in_which_nobody_waits_does_not_count() -> None:
    rate = DrainRate()
    rate.observe(0.0, 1, 1)
    rate.observe(2.0, 1, 0)
    rate.observe(3600.0, 1, 0)
    rate.observe(7200.0, 1, 1)
    assert rate.retry_after(10) == 10.0
    rate.restart()
    rate.observe(9000.0, 1, 1)
    assert rate.retry_after(10) == 10.0


def test_the_time_of_the_first_who_waits_counts() -> None:
    rate = DrainRate()
    rate.observe(100.0, 0, 1)
    rate.observe(101.0, 0, 2)
    rate.observe(104.0, 1, 1)
    assert rate.retry_after(10) == 20.0
