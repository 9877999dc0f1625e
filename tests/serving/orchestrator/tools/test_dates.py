import time
from datetime import UTC, datetime
from typing import Any

import pytest

from serving.orchestrator.tools.dates import Dates
from serving.orchestrator.tools.registry import ToolScope

SCOPE = ToolScope(tenant="t", user="u", request_id="r", deadline=time.monotonic() + 3600)
NOW = datetime(2026, 3, 28, 22, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"operation": "now"}, "2026-03-28T22:30+00:00 (Saturday, week 13 of 2026, day 87)"),
        ({"operation": "now", "timezone": "Asia/Tokyo"}, "2026-03-29T07:30+09:00"),
        ({"operation": "weekday", "date": "2000-02-29"}, "2000-02-29T00:00+00:00 (Tuesday, week 9 of 2000, day 60)"),
        ({"operation": "add", "date": "2024-01-31", "months": 1}, "2024-02-29T00:00+00:00 (Thursday"),
        ({"operation": "add", "date": "2024-02-29", "years": -1, "days": 1}, "2023-03-01"),
        # The night in which clocks go forward: a day later is the same hour, 24 hours later is not.
        (
            {"operation": "add", "date": "2026-03-28T12:00", "days": 1, "timezone": "Europe/Berlin"},
            "2026-03-29T12:00+02:00",
        ),
        (
            {"operation": "add", "date": "2026-03-28T12:00", "hours": 24, "timezone": "Europe/Berlin"},
            "2026-03-29T13:00+02:00",
        ),
        ({"operation": "between", "date": "2025-12-25", "until": "2026-03-01"}, "66 days by the calendar"),
        (
            {"operation": "between", "date": "2026-03-02T06:00", "until": "2026-03-01"},
            "-1 days by the calendar; exactly -30 h",
        ),
    ],
)
async def test_dates_are_reckoned(arguments: dict[str, Any], text: str) -> None:
    result = await Dates(lambda: NOW).run(arguments, SCOPE)
    assert not result.is_error
    assert result.text.startswith(text)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"operation": "now", "timezone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"operation": "now", "timezone": "../../etc/passwd"}, "no time zone"),
        ({"operation": "weekday", "date": "2026-02-30"}, "day is out of range"),
        ({"operation": "add", "date": "2026-01-01", "years": 99_999}, "out of range"),
        ({"operation": "add", "date": "9999-12-31", "days": 1}, "out of range"),
        ({"operation": "between", "date": "2026-01-01"}, "between needs until"),
    ],
)
async def test_dates_that_are_none_are_errors_that_say_so(arguments: dict[str, Any], reason: str) -> None:
    result = await Dates(lambda: NOW).run(arguments, SCOPE)
    assert result.is_error
    assert reason in result.text
