"""Weekdays, months and dates."""

from scripts.demo.dialogue import Episode, Exchange, Maker
from scripts.demo.dialogues.arithmetic import divided
from scripts.demo.draw import Draw

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
LEAD = "[||||||||hi, |hey, |please |ok, |so |and |well, |now |tell me, |do you know ]"
WHICH = "[what|which]"
END = "[?|?|?|| please?]"
SMALL = "zero one two three four five six seven eight nine ten eleven twelve".split()


def _cased(draw: Draw, text: str) -> str:
    return text.lower() if draw.chance(0.35) else text


def _count(draw: Draw, number: int) -> str:
    return SMALL[number] if number <= 12 and draw.chance(0.25) else str(number)


def weekday(draw: Draw) -> Episode:
    day = draw.integer(0, 6)
    shown = _cased(draw, DAYS[day])
    kind = draw.integer(0, 4)
    if kind <= 1:
        after = kind == 0
        other = DAYS[(day + 1) % 7] if after else DAYS[(day - 1) % 7]
        side = "[after|following]" if after else "[before|preceding]"
        verb = (
            "[comes after|is after|follows|comes next after]"
            if after
            else "[comes before|is before|precedes|comes just before]"
        )
        wordings = [
            f"{WHICH} [day|weekday|day of the week] {verb} {{d}}",
            f"[what is|what's|tell me|name] the [day|weekday] {side} {{d}}",
            f"what {verb} {{d}}",
            f"the [day|weekday] {side} {{d}}",
        ]
        wordings.append(
            "if today is {d}, what [day |]is [tomorrow|it tomorrow]"
            if after
            else "if today is {d}, what [day |]was [yesterday|it yesterday]"
        )
        answer = f"{other} comes after {DAYS[day]}." if after else f"{other} comes before {DAYS[day]}."
        return Episode("dates", (Exchange(draw.say(LEAD + draw.choice(wordings) + END, d=shown), answer, f"{other}."),))
    count = draw.integer(2, 30)
    forward = draw.chance(0.7)
    other = DAYS[(day + count) % 7] if forward else DAYS[(day - count) % 7]
    wordings = (
        [
            "[what|which] [day|weekday] is {n} days [after|from] {d}",
            "if today is {d}, [what|which] day is it in {n} days",
            "today is {d}. [what|which] day [is it|will it be] in {n} days",
            "{n} days after {d}",
            "what is {n} days after {d}",
            "it's {d}, [what|which] day is it in {n} days",
        ]
        if forward
        else [
            "[what|which] [day|weekday] [is|was] {n} days before {d}",
            "if today is {d}, [what|which] day was it {n} days ago",
            "today is {d}. [what|which] day was it {n} days ago",
            "{n} days before {d}",
            "what is {n} days before {d}",
        ]
    )
    direction = "after" if forward else "before"
    rest = count % 7
    if count < 7:
        answer = f"{count} days {direction} {DAYS[day]} is {other}."
    elif rest == 0:
        answer = f"{count} days are {count // 7} weeks, so it is {other}."
    else:
        answer = (
            f"{count} days are {count // 7} weeks and {rest} days, and {rest} days {direction} {DAYS[day]} is {other}."
        )
    return Episode(
        "dates",
        (
            Exchange(
                draw.say(LEAD + draw.choice(wordings) + END, d=shown, n=_count(draw, count)),
                answer,
                f"{other}." if count < 7 else answer,
            ),
        ),
    )


def month(draw: Draw) -> Episode:
    at = draw.integer(0, 11)
    shown = _cased(draw, MONTHS[at])
    kind = draw.integer(0, 7)
    if kind <= 1:
        after = kind == 0
        other = MONTHS[(at + 1) % 12] if after else MONTHS[(at - 1) % 12]
        verb = (
            "[comes after|is after|follows|comes next after]"
            if after
            else "[comes before|is before|precedes|comes just before]"
        )
        wordings = [
            f"{WHICH} month {verb} {{m}}",
            f"[what is|what's|tell me|name] the month {'after' if after else 'before'} {{m}}",
            f"what {verb} {{m}}",
        ]
        answer, brief = (f"{other} comes {'after' if after else 'before'} {MONTHS[at]}.", f"{other}.")
        text = draw.say(LEAD + draw.choice(wordings) + END, m=shown)
    elif kind == 2:
        text = draw.say(
            LEAD
            + "[how many days [has {m}|does {m} have|are in {m}|are there in {m}|in {m}]|what is the [length|number of days] of {m}|how long is {m}|number of days in {m}|days in {m}]"
            + END,
            m=shown,
        )
        answer = f"{MONTHS[at]} has {LENGTHS[at]} days." if at != 1 else "February has 28 days, and 29 in a leap year."
        brief = f"{LENGTHS[at]}." if at != 1 else "28, or 29."
    elif kind == 3:
        text = draw.say(
            LEAD + "[which|what] number is [the month |]{m}" + END
            if draw.chance(0.5)
            else "[what is|what's] the number of [the month |]{m}" + END,
            m=shown,
        )
        answer, brief = f"{MONTHS[at]} is month {at + 1}.", f"{at + 1}."
    elif kind == 4:
        text = draw.say(
            LEAD
            + "[which|what|name the|what is the] [month is number|month is the|month number|month has the number] {n}"
            + END
            if draw.chance(0.6)
            else "[month {n}|what is the {o} month|which month is the {o}]" + END,
            n=at + 1,
            o=_ordinal(at + 1),
        )
        answer, brief = f"Month {at + 1} is {MONTHS[at]}.", f"{MONTHS[at]}."
    else:
        count, forward = draw.integer(2, 11), draw.chance(0.6)
        other = MONTHS[(at + count) % 12] if forward else MONTHS[(at - count) % 12]
        wordings = (
            [
                "[what|which] month is {n} months [after|from] {m}",
                "it is {m}. [what|which] month [is it|will it be] in {n} months",
                "{n} months after {m}",
                "what is {n} months after {m}",
                "if it is {m} now, what month is it in {n} months",
            ]
            if forward
            else [
                "[what|which] month [is|was] {n} months before {m}",
                "it is {m}. [what|which] month was it {n} months ago",
                "{n} months before {m}",
                "what is {n} months before {m}",
            ]
        )
        text = draw.say(LEAD + draw.choice(wordings) + END, m=shown, n=_count(draw, count))
        answer = f"{MONTHS[at]} is month {at + 1}. {_counted(at + 1, count if forward else -count)}. "
        answer += f"{count} months {'after' if forward else 'before'} {MONTHS[at]} is {other}."
        brief = answer  # the steps are how it is found
    return Episode("dates", (Exchange(text, answer, brief),))


def _counted(month: int, months: int) -> str:
    """The written steps from one month's number to another's, over the end of the year."""
    found = month + months
    steps = f"{month}{months:+}={found}"
    if 1 <= found <= 12:
        return steps
    return f"{steps}, {found}{'-' if found > 12 else '+'}12={(found - 1) % 12 + 1}"


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def is_leap(year: int) -> str:
    """Whether a year is a leap year, found in written steps: of a full century the first two digits are divided by 4."""
    century, within = divmod(year, 100)
    found = "a leap year: it has 366 days" if leap(year) else "not a leap year: it has 365 days"
    return f"{divided(within or century, 4)} {year} is {found}."


def date(draw: Draw) -> Episode:
    kind = draw.integer(0, 5)
    at, year = draw.integer(0, 11), draw.integer(1900, 2099)
    year = draw.choice([1900, 2000]) if kind == 0 and draw.chance(0.06) else year
    day = draw.integer(1, LENGTHS[at])
    shown = _cased(draw, MONTHS[at])
    if kind == 0:
        text = draw.say(
            LEAD + "[is|was|will] {y} [be |]a leap year" + END
            if draw.chance(0.7)
            else "[leap year {y}|{y} leap year|does {y} have 366 days|how many days [has|does] {y} [have|]]" + END,
            y=year,
        ).replace("is {y} be", "is {y}")
        answer = is_leap(year)
        exchange = Exchange(text, answer, answer, key=f"leap {year}")  # the steps are how it is found
    elif kind <= 2:
        styles = [f"{year}-{at + 1:02}-{day:02}"]
        text = draw.say(
            LEAD
            + "[write|spell out|what date is|what is|convert|read|say|put in words][| the date] {d}[| in words| as text| as a date| in full]"
            + END,
            d=draw.choice(styles),
        )
        exchange = Exchange(
            text, f"It is {day} {MONTHS[at]} {year}.", f"{day} {MONTHS[at]} {year}.", key=f"date {day} {at} {year}"
        )
    elif kind == 3:
        spelled = draw.choice(
            [
                f"{day} {shown} {year}",
                f"{shown} {day}, {year}",
                f"{shown} {day} {year}",
                f"the {_ordinal(day)} of {shown} {year}",
                f"{_ordinal(day)} {shown} {year}",
            ]
        )
        text = draw.say(
            LEAD
            + "[write|convert|what is|give me|format|put|turn] {d} [as an iso date|in iso format|to iso|in iso|as iso|as yyyy-mm-dd|into iso format|in the iso format]"
            + END,
            d=spelled,
        )
        exchange = Exchange(
            text, f"It is {year}-{at + 1:02}-{day:02}.", f"{year}-{at + 1:02}-{day:02}.", key=f"iso {day} {at} {year}"
        )
    else:
        after = draw.chance(0.6)
        if after:
            last = day == LENGTHS[at]
            other = (1, MONTHS[(at + 1) % 12]) if last else (day + 1, MONTHS[at])
        else:
            other = (LENGTHS[at - 1], MONTHS[at - 1]) if day == 1 else (day - 1, MONTHS[at])
        spelled = draw.choice(
            [f"{day} {shown}", f"{shown} {day}", f"the {_ordinal(day)} of {shown}", f"{_ordinal(day)} {shown}"]
        )
        side = "after" if after else "before"
        text = draw.say(
            LEAD
            + f"[[what|which] [date|day] [is|comes] {side} {{d}}|what is the [date|day] {side} {{d}}|the day {side} {{d}}]"
            + END,
            d=spelled,
        )
        exchange = Exchange(
            text, f"The day {side} {day} {MONTHS[at]} is {other[0]} {other[1]}.", f"{other[0]} {other[1]}."
        )
    return Episode("dates", (exchange,))


MAKERS: list[tuple[float, Maker]] = [(2.0, weekday), (2.0, month), (2.0, date)]
