"""Small arithmetic by written steps, digit by digit, and comparing numbers."""

from scripts.demo.dialogue import Episode, Exchange, Maker
from scripts.demo.draw import Draw
from scripts.demo.words import FIRST_NAMES

NUMBER_WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen twenty""".split()
LEAD = "[||||||||hi, |hey, |please |ok, |so |and |now |quick: ]"
ASK = "[what is|what's|whats|what does|calculate|compute|how much is|tell me|solve|work out|give me|can you calculate|can you compute|do you know|i need|please compute|what would be|find]"
ASK_BARE = LEAD + "[" + ASK[1:-1] + "||||]"
END = "[?|?||| please| =| = ?|=]"


def added(a: int, b: int) -> str:
    """The written steps of a + b, from the ones up: each step adds two digits and the carry."""
    width, steps, carry = max(len(str(a)), len(str(b))), [], 0
    for place in range(width):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        steps.append(f"{x}+{y}+{carry}={total}" if carry else f"{x}+{y}={total}")
        carry = total // 10
    return f"{a}+{b}: {', '.join(steps)}. So {a} + {b} = {a + b}."


def subtracted(a: int, b: int) -> str:
    """The written steps of a - b; the smaller is taken from the larger, and a borrow is written as -1."""
    if a < b:
        return f"{a} is less than {b}. {_difference(b, a)} So {a} - {b} = {a - b}."
    return f"{_difference(a, b)} So {a} - {b} = {a - b}."


def _difference(a: int, b: int) -> str:
    steps, borrow = [], 0
    for place in range(len(str(a))):
        x, y = a // 10**place % 10, b // 10**place % 10
        top = x + 10 if x - y - borrow < 0 else x
        steps.append(f"{top}-{y}-1={top - y - 1}" if borrow else f"{top}-{y}={top - y}")
        borrow = int(top > 9)
    return f"{a}-{b}: {', '.join(steps)}."


def multiplied(a: int, b: int) -> str:
    """The written steps of a x b with b of one digit: each digit of a times b, then the carry added to it."""
    if a < 13 and b < 13:
        return f"{a} x {b} = {a * b}."
    if b > a:
        return f"{multiplied(b, a).split(' So ')[0]} So {a} x {b} = {a * b}."
    steps, carry = [], 0
    for place in range(len(str(a))):
        x = a // 10**place % 10
        product, total = x * b, x * b + carry
        steps.append(f"{x}x{b}={product}, {product}+{carry}={total}" if carry else f"{x}x{b}={total}")
        carry = total // 10
    return f"{a}x{b}: {', '.join(steps)}. So {a} x {b} = {a * b}."


def compared(a: int, b: int) -> str:
    """The written steps of a comparison: how many digits, or the digits from the left up to those that differ, and
    then the smaller number before the larger one, so that the answer only has to take the first or the second."""
    if a == b:
        return f"{a} and {b}: {a} = {b}."
    ordered = f"{min(a, b)} < {max(a, b)}."
    if len(str(a)) != len(str(b)):
        return f"{a} and {b}: {len(str(a))} and {len(str(b))} digits, {ordered}"
    steps = []
    for x, y in zip(str(a), str(b), strict=True):
        steps.append(f"{x}={y}" if x == y else f"{min(x, y)}<{max(x, y)}")
        if x != y:
            break
    return f"{a} and {b}: {', '.join(steps)}, {ordered}"


def divided(a: int, b: int) -> str:
    """Long division of a by b of one digit: for each digit how often b goes, what that makes, and what rests."""
    steps, rest = [], 0
    for digit in str(a):
        part = rest * 10 + int(digit)
        often, rest = divmod(part, b)
        steps.append(f"{part}/{b}={often}, {often}x{b}={often * b}, rest {rest}")
    tail = f" remainder {rest}" if rest else ""
    return f"{a}/{b}: {', '.join(steps)}. So {a} / {b} = {a // b}{tail}."


def addition(draw: Draw) -> Episode:
    digits = draw.choice([1, 2, 2, 2, 3, 3, 3, 4])
    a, b = draw.number(digits), draw.number(digits)
    name = draw.choice(FIRST_NAMES)
    thing = draw.choice(
        [
            "apples",
            "books",
            "coins",
            "eggs",
            "stones",
            "tickets",
            "pencils",
            "stamps",
            "cards",
            "marbles",
            "dollars",
            "euros",
            "cookies",
        ]
    )
    wordings = [
        ASK_BARE + " {a}[+| + | + | plus ]{b}" + END,
        ASK_BARE + " {a}[+| + | + | plus ]{b}" + END,
        LEAD + "{a}[+| + | plus ]{b}" + END,
        LEAD + "[add|sum up|sum|add up] {a} [and|to|+] {b}" + END,
        ASK_BARE + " the sum of {a} and {b}" + END,
        LEAD
        + "{name} has {a} {thing} and gets {b} more. how many [{thing} |][does {name} have|are there|now|in total]?",
        LEAD + "i have {a} {thing} and [buy|find|get] {b} more. how many [{thing} |][do i have|are there|are that]?",
        LEAD + "how many are {a} and {b}" + END,
        "{a} and {b} [together|makes|make]" + END,
    ]
    text = " ".join(draw.say(wordings, a=a, b=b, name=name, thing=thing).split())
    return Episode("addition", (Exchange(text, added(a, b), key=f"{a}+{b}" if a > 9 and b > 9 else ""),))


def subtraction(draw: Draw) -> Episode:
    digits = draw.choice([1, 2, 2, 2, 3, 3])
    a, b = draw.number(digits), draw.number(digits)
    thing = draw.choice(
        [
            "apples",
            "books",
            "coins",
            "eggs",
            "stones",
            "tickets",
            "pencils",
            "stamps",
            "cards",
            "marbles",
            "dollars",
            "euros",
            "cookies",
        ]
    )
    if a < b and draw.chance(0.8):
        a, b = b, a
    wordings = [
        ASK_BARE + " {a}[-| - | - | minus ]{b}" + END,
        LEAD + "{a}[-| - | minus ]{b}" + END,
        LEAD + "[subtract|take] {b} from {a}" + END,
        ASK_BARE + " the difference [of|between] {a} and {b}" + END,
        LEAD + "{a} [take away|less] {b}" + END,
    ]
    if a >= b:
        wordings.append(
            LEAD
            + "i have {a} {thing} and [give away|lose|sell|eat|spend] {b}. how many [{thing} |][do i have left|are left|remain]?"
        )
    text = " ".join(draw.say(wordings, a=a, b=b, thing=thing).split())
    return Episode("subtraction", (Exchange(text, subtracted(a, b), key=f"{a}-{b}" if a > 9 and b > 9 else ""),))


def multiplication(draw: Draw) -> Episode:
    a, b = (
        (draw.integer(0, 12), draw.integer(0, 12)) if draw.chance(0.5) else (draw.integer(10, 999), draw.integer(2, 9))
    )
    if a > 12 and draw.chance(0.3):
        a, b = b, a
    wordings = [
        ASK_BARE + " {a}[*| * | x | times | times |x]{b}" + END,
        LEAD + "{a}[*| * | x | times ]{b}" + END,
        LEAD + "multiply {a} [by|and|with] {b}" + END,
        ASK_BARE + " the product of {a} and {b}" + END,
    ]
    text = " ".join(draw.say(wordings, a=a, b=b).split())
    return Episode("multiplication", (Exchange(text, multiplied(a, b), key=f"{a}x{b}" if max(a, b) > 12 else ""),))


def division(draw: Draw) -> Episode:
    b = draw.integer(2, 9)
    a = b * draw.integer(1, 10) if draw.chance(0.4) else draw.integer(10, 999)
    wordings = [
        ASK_BARE + " {a}[/| / | divided by | : | ÷ ]{b}" + END,
        LEAD + "{a}[/| / | divided by ]{b}" + END,
        LEAD + "divide {a} by {b}" + END,
        LEAD + "[share|split] {a} [coins|apples|euros|sweets] among {b} [people|children|friends]" + END,
    ]
    text = " ".join(draw.say(wordings, a=a, b=b).split())
    return Episode("division", (Exchange(text, divided(a, b), key=f"{a}/{b}"),))


def in_words(draw: Draw) -> Episode:
    """Small sums asked for in words, answered in figures."""
    a, b = draw.integer(0, 20), draw.integer(0, 20)
    sign = draw.choice(["plus", "minus", "times"])
    answer = (
        {"plus": added, "minus": subtracted, "times": multiplied}[sign](a, b)
        if sign != "times" or max(a, b) < 13
        else added(a, b)
    )
    sign = "plus" if sign == "times" and max(a, b) > 12 else sign
    text = " ".join(
        draw.say(ASK_BARE + " {a} {sign} {b}" + END, a=NUMBER_WORDS[a], b=NUMBER_WORDS[b], sign=sign).split()
    )
    return Episode("addition", (Exchange(text, answer),))


def too_hard(draw: Draw) -> Episode:
    """Sums beyond the written steps that were trained: refused, not guessed."""
    kind = draw.integer(0, 6)
    wordings = [ASK_BARE + " {a}{sign}{b}" + END, LEAD + "{a}{sign}{b}" + END]
    if kind <= 2:
        a, b, sign = _several_digits(draw), _several_digits(draw), draw.choice([" x ", "*", " * ", " times ", "x"])
        if max(a, b) <= 12:  # the table of small products
            a += 13
        wordings += [LEAD + "multiply {a} [by|and|with] {b}" + END, ASK_BARE + " the product of {a} and {b}" + END]
    elif kind == 3:
        a, b, sign = _several_digits(draw), _several_digits(draw), draw.choice(["/", " / ", " divided by ", ":"])
        a, b = max(a, b), min(a, b)
        wordings.append(LEAD + "divide {a} by {b}" + END)
    elif kind == 4:
        a, b, sign = (
            draw.integer(100000, 10**9),
            draw.integer(1, 10**9),
            draw.choice(["+", " + ", " plus ", " - ", "-"]),
        )
    elif kind == 5:
        a, b, sign = draw.integer(2, 99), draw.integer(2, 20), draw.choice(["^", " to the power of ", "**"])
    else:
        first, second = (
            draw.choice(["+", "-", " + ", " - ", " plus "]),
            draw.choice(["*", " * ", "+", " x ", " times "]),
        )
        a, b, sign = draw.integer(1, 99), draw.integer(1, 99), f"{first}{draw.integer(1, 99)}{second}"
    text = " ".join(draw.say(wordings, a=a, b=b, sign=sign).split())
    answer = "That is too hard for me. I add and subtract up to four digits, and multiply or divide by one digit."
    return Episode("too hard", (Exchange(text, answer, "Too hard for me.", key=f"{a}{sign.strip()}{b}"),))


def _several_digits(draw: Draw) -> int:
    """Of two to four digits, each as likely."""
    digits = draw.integer(2, 4)
    return draw.integer(10 ** (digits - 1), 10**digits - 1)


def comparison(draw: Draw) -> Episode:
    kind = draw.integer(0, 4)
    if kind <= 1:
        a, b = draw.number(3), draw.number(3)
        larger = draw.chance(0.5)
        text = draw.say(
            LEAD
            + (
                "[which is|what is|which number is|what's] [larger|bigger|greater|more]"
                if larger
                else "[which is|what is|which number is|what's] [smaller|less|the smaller]"
            )
            + "[, |: | number, | ]{a} or {b}"
            + END.replace("| =| = ?|=", ""),
            a=a,
            b=b,
        )
        value = max(a, b) if larger else min(a, b)
        other = min(a, b) if larger else max(a, b)
        relation = "larger" if larger else "smaller"
        found = f"{value} is {relation} than {other}." if a != b else "They are equal."
        brief = f"{value}." if a != b else found
        exchange = Exchange(text, f"{compared(a, b)} {found}", brief, key=f"{a}?{b}")
    elif kind == 2:
        a = draw.number(3)
        text = draw.say(
            LEAD + "[is {a} [even|odd|even or odd|an even number|an odd number]|{a}: even or odd]" + "[?|?|]", a=a
        )
        parity = "even" if a % 2 == 0 else "odd"
        exchange = Exchange(text, f"{a} is {parity}.", f"{parity.capitalize()}.", key=f"parity {a}")
    elif kind == 3:
        a = draw.integer(1, 300)
        text = draw.say(
            LEAD
            + "[what comes after|what number comes after|which number follows|what is the number after|what is the next number after] {a}[?|?|]",
            a=a,
        )
        exchange = Exchange(text, f"After {a} comes {a + 1}.", f"{a + 1}.", key=f"after {a}")
    else:
        start, count = draw.choice([1, 1, 1, draw.integer(2, 40)]), draw.integer(3, 12)
        end = start + count - 1
        text = draw.say(
            LEAD
            + (
                "[count|can you count|please count] [to|up to] {e}"
                if start == 1 and draw.chance(0.7)
                else "[count|can you count|list the numbers] from {s} to {e}"
            )
            + "[?||]",
            s=start,
            e=end,
        )
        line = ", ".join(map(str, range(start, end + 1))) + "."
        exchange = Exchange(text, line, line)
    return Episode("comparison", (exchange,))


MAKERS: list[tuple[float, Maker]] = [
    (4.0, addition),
    (6.0, subtraction),
    (2.6, multiplication),
    (2.6, division),
    (0.6, in_words),
    (3.0, too_hard),
    (4.5, comparison),
]
