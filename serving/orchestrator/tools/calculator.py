"""Arithmetic: an expression read by Python's parser, walked here over a few node kinds, in numbers of bounded size.

Integers and decimal fractions are exact; roots, logarithms and angles are floating-point numbers.
"""

import ast
import math
import operator
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation, localcontext
from fractions import Fraction
from typing import Any

from serving.orchestrator.tools.registry import ToolResult, ToolScope, failed

MAX_CHARS = 1000
MAX_BITS = 4096  # of a numerator or denominator: over a thousand digits
MAX_DEPTH = 100
_MAX_FACTORIAL = 500
_SPELLINGS = str.maketrans({"^": "**", "×": "*", "·": "*", "÷": "/", "−": "-", "π": "pi"})

Number = Fraction | float


class _ExpressionError(Exception):
    """What the model is told of its expression."""


class Calculator:
    name = "calculator"
    description = (
        "Evaluates an arithmetic expression exactly: + - * / // % **, parentheses, the constants pi and e, and abs, "
        "round, floor, ceil, sqrt, exp, log, log2, log10, sin, cos, tan, asin, acos, atan, degrees, radians, "
        "factorial, gcd, lcm, comb, min, max, sum, mean."
    )
    idempotent = True

    @property
    def parameters(self) -> dict[str, Any]:
        expression = {"type": "string", "description": "such as (3 + 4.5) * 2 ** 10", "maxLength": MAX_CHARS}
        return {
            "type": "object",
            "properties": {"expression": expression},
            "required": ["expression"],
            "additionalProperties": False,
        }

    async def run(self, arguments: dict[str, Any], scope: ToolScope) -> ToolResult:
        try:
            return ToolResult(text=evaluate(arguments["expression"]), harmless=True)
        except _ExpressionError as error:
            return failed(str(error))


def evaluate(expression: str) -> str:
    """The value, written out. Raises _ExpressionError."""
    if len(expression) > MAX_CHARS:
        raise _ExpressionError(f"an expression may have {MAX_CHARS} characters")
    source = expression.strip().translate(_SPELLINGS)
    try:
        return _written(_value(ast.parse(source, mode="eval").body, source, MAX_DEPTH))
    except ZeroDivisionError:
        raise _ExpressionError("division by zero") from None
    except OverflowError:
        raise _ExpressionError("the result is too large") from None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise _ExpressionError(f"the expression cannot be evaluated: {reason or 'it is nested too deeply'}") from None


def _value(node: ast.expr, source: str, depth: int) -> Number:
    if depth == 0:
        raise _ExpressionError(f"an expression may be nested {MAX_DEPTH} deep")
    match node:
        case ast.Constant(value=bool()):
            raise _ExpressionError("only numbers can be calculated with")
        case ast.Constant(value=int() as whole):
            return _bounded(Fraction(whole))
        case ast.Constant(value=float()):
            return _decimal(ast.get_source_segment(source, node) or "")
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = _value(operand, source, depth - 1)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp():
            return _chain(node, source, depth)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*(_value(argument, source, depth - 1) for argument in arguments)))
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            raise _ExpressionError(f"there is no {name[:50]!r} here")
    raise _ExpressionError("an expression may have numbers, operators, parentheses and the functions that are named")


def _chain(node: ast.BinOp, source: str, depth: int) -> Number:
    """A sum of many terms leans to the left: it is walked without recursion."""
    rights: list[tuple[ast.operator, ast.expr]] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp):
        rights.append((left.op, left.right))
        left = left.left
    value = _value(left, source, depth - 1)
    for kind, right in reversed(rights):
        operation = _OPERATORS.get(type(kind))
        if operation is None:
            raise _ExpressionError("the operators are + - * / // % and **")
        value = _bounded(operation(value, _value(right, source, depth - 1)))
    return value


def _decimal(text: str) -> Number:
    try:
        number = Decimal(text.replace("_", ""))
    except InvalidOperation:  # an exponent beyond those that a Decimal has
        number = None
    if number is None or (number and abs(number.adjusted()) > MAX_BITS // 4):
        raise _ExpressionError("a number is too large or too small")
    return Fraction(number)


def _bounded(value: Number | int) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError
        return value
    exact = Fraction(value)
    if max(exact.numerator.bit_length(), exact.denominator.bit_length()) > MAX_BITS:
        raise OverflowError
    return exact


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, float) or isinstance(exponent, float) or exponent.denominator != 1:
        return math.pow(base, exponent)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) not in (0, 1) and bits * abs(exponent) > 2 * MAX_BITS:  # before it is computed
        raise OverflowError
    return base ** (exponent.numerator % 2 if abs(base) == 1 else exponent.numerator)


def _root(value: Number) -> Number:
    if isinstance(value, Fraction) and value >= 0:
        roots = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if (roots[0] ** 2, roots[1] ** 2) == (value.numerator, value.denominator):
            return Fraction(*roots)
    return math.sqrt(value)


def _whole(value: Number, most: int = MAX_BITS) -> int:
    if value != int(value) or abs(value) > most:
        raise ValueError(f"{_written(value)[:50]} is no integer of at most {most}")
    return int(value)


def _rounded(value: Number, digits: Number = Fraction(0)) -> Number:
    return Fraction(round(value, _whole(digits, 100)))


def _floating(function: Callable[..., float]) -> Callable[..., Number]:
    return lambda *values: function(*map(float, values))


def _of_integers(function: Callable[..., int], most: int) -> Callable[..., Number]:
    return lambda *values: Fraction(function(*(_whole(value, most) for value in values)))


def _mean(*values: Number) -> Number:
    return sum(values, Fraction(0)) / len(values)


_CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Number | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FLOATING = "exp log log2 log10 sin cos tan asin acos atan degrees radians".split()
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _floating(getattr(math, name)) for name in _FLOATING},
    "abs": abs,
    "round": _rounded,
    "floor": math.floor,
    "ceil": math.ceil,
    "sqrt": _root,
    "factorial": _of_integers(math.factorial, _MAX_FACTORIAL),
    "comb": _of_integers(math.comb, MAX_BITS),
    "gcd": _of_integers(math.gcd, 1 << MAX_BITS),
    "lcm": _of_integers(math.lcm, 1 << MAX_BITS),
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "sum": lambda *values: sum(values, Fraction(0)),
    "mean": _mean,
}


def _written(value: Number) -> str:
    """Integers whole, fractions exactly where they have an end and are short, else to 15 digits."""
    if isinstance(value, float):
        return f"{value:.15g}"
    if value.denominator == 1:
        return str(value.numerator)
    with localcontext(Context(prec=40)):
        quotient = Decimal(value.numerator) / Decimal(value.denominator)
    if Fraction(quotient) != value or not -20 < quotient.adjusted() < 40:
        return f"{quotient:.15g}"
    return f"{quotient:f}"
