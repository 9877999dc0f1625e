"""The date and time now, and reckoning with dates: what models get wrong by themselves."""

import calendar
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from serving.orchestrator.tools.registry import ToolResult, ToolScope, failed

_MOST = 100_000  # of each amount that is added

_AMOUNTS = ("years", "months", "weeks", "days", "hours", "minutes")


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Dates:
    now: Callable[[], datetime] = _now

    name = "dates"
    description = (
        "Dates and times. operation now: the date and time in a time zone; add: a date with years, months, weeks, "
        "days, hours or minutes added (negative: taken off); between: from date to until, in days; weekday: the day "
        "and week of a date."
    )
    idempotent = True

    @property
    def parameters(self) -> dict[str, Any]:
        day = {"type": "string", "description": "ISO 8601, such as 2026-03-31 or 2026-03-31T14:00", "maxLength": 40}
        amount = {"type": "integer", "minimum": -_MOST, "maximum": _MOST}
        return {
            "type": "object",
            "properties": {
                "operation": {"enum": ["now", "add", "between", "weekday"]},
                "date": {**day, "description": f"{day['description']}; left out: now"},
                "until": day,
                "timezone": {"type": "string", "description": "such as Europe/Berlin; left out: UTC", "maxLength": 64},
                **dict.fromkeys(_AMOUNTS, amount),
            },
            "required": ["operation"],
            "additionalProperties": False,
        }

    async def run(self, arguments: dict[str, Any], scope: ToolScope) -> ToolResult:
        try:
            zone = ZoneInfo(arguments.get("timezone", "UTC"))
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return failed(f"there is no time zone {arguments['timezone']!r}")
        try:
            date = self._date(arguments.get("date"), zone)
            match arguments["operation"]:
                case "add":
                    return _result(_written(_added(date, arguments)))
                case "between":
                    if "until" not in arguments:
                        return failed("between needs until")
                    return _result(_distance(date, self._date(arguments["until"], zone)))
                case _:
                    return _result(_written(date))
        except (ValueError, OverflowError) as error:
            return failed(f"the date cannot be used: {error}")

    def _date(self, text: str | None, zone: ZoneInfo) -> datetime:
        if text is None:
            return self.now().astimezone(zone)
        date = datetime.fromisoformat(text)
        return date.replace(tzinfo=zone) if date.tzinfo is None else date.astimezone(zone)


def _result(text: str) -> ToolResult:
    return ToolResult(text=text, harmless=True)


def _added(date: datetime, amounts: dict[str, Any]) -> datetime:
    """Months keep the day of the month where there is one, else its last. A day later is the same time of day,
    which around a change to summer time is not 24 hours later."""
    months = date.year * 12 + date.month - 1 + amounts.get("years", 0) * 12 + amounts.get("months", 0)
    year, month = divmod(months, 12)
    if not 1 <= year <= 9999:
        raise ValueError(f"the year {year} is out of range")
    day = min(date.day, calendar.monthrange(year, month + 1)[1])
    moved = date.replace(year=year, month=month + 1, day=day)
    moved += timedelta(weeks=amounts.get("weeks", 0), days=amounts.get("days", 0))
    exact = timedelta(hours=amounts.get("hours", 0), minutes=amounts.get("minutes", 0))
    return (moved.astimezone(UTC) + exact).astimezone(date.tzinfo) if exact else moved


def _distance(begin: datetime, end: datetime) -> str:
    days = (end.date() - begin.date()).days
    exact = end.astimezone(UTC) - begin.astimezone(UTC)
    hours, minutes = divmod(abs(int(exact.total_seconds())) // 60, 60)
    sign = "-" if exact < timedelta() else ""
    return f"{days} days by the calendar; exactly {sign}{hours} h {minutes} min"


def _written(date: datetime) -> str:
    year, week, _ = date.isocalendar()
    return f"{date.isoformat(timespec='minutes')} ({date:%A}, week {week} of {year}, day {date.timetuple().tm_yday})"
