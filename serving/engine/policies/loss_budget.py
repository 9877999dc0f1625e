"""What guessing may lose before it has gained anything: a share of the time that decoding takes anyway.

A promise (`speculation.py`) rests on measurements, and those are made by steps that may lose. So each plan that had
guesses, or that did not overlap because of them, is set against what its tokens take without guesses; every plan adds
an allowance. A risk is run only where the balance covers it. Whatever guesses turn out to be worth, decoding then
takes at most 1 + ALLOWANCE times as long, and what the last risk cost beyond its estimate; an estimate that was too low
is paid back before the next.
"""

ALLOWANCE = 0.02
MOST_STEPS = 16  # of plain decoding, that a balance is kept for: old gains do not pay for long losses
UNKNOWN = 2.0  # times a plain step, that a step with guesses is taken for before one was seen


def settled(balance: float, *, took: float, worth: float, risked: bool, step: float) -> float:
    """The balance after a plan that took so many seconds and gave tokens worth so many of plain decoding, in which a
    step takes `step`."""
    gained = worth - took if risked else 0.0
    return min(balance + gained + ALLOWANCE * worth, MOST_STEPS * step)


def covers(balance: float, *, took: float | None, step: float, reading: float = 0.0) -> bool:
    """Whether a step with guesses may be tried that takes so long (None: it is not known) and of which none may be
    right, after `reading` seconds in which the draft model reads texts."""
    return (UNKNOWN * step if took is None else took) - step + reading <= balance


def affordable_texts(balance: float, unread: list[int], seconds_a_token: float) -> list[bool]:
    """Which of the texts a draft model may read, by what it has not read of each: the shortest first."""
    affordable = [False] * len(unread)
    for index in sorted(range(len(unread)), key=unread.__getitem__):
        balance -= unread[index] * seconds_a_token
        if balance < 0 < unread[index]:
            break
        affordable[index] = True
    return affordable
