"""JSON as the portal takes it: RFC 8259 in UTF-8, and nothing that two readers could read differently.

Refused: a BOM, duplicate keys, NaN and Infinity, numbers beyond 64 bits or beyond a double, U+0000
(PostgreSQL cannot store it), lone surrogates, nesting deeper than 32.

The standard library's scanner is used because it shows duplicate keys and digits before they are
lost; its C code stops at deep nesting with RecursionError instead of overrunning the stack.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn, cast

from portal.problems import Fault, Problem

MAX_DEPTH = 32
#: -2**63 has 20 characters; what is longer is never a value here, and int() is quadratic in it.
MAX_DIGITS = 20
#: Ten thousand jobs with a `simulate` each, and the batch: more objects than that are no request.
MAX_OBJECTS = 20_001


#: More names than any object has, so that the faults of one are few.
MAX_NAMES = 32
#: Checked before the scanner makes a Python object of each: four bytes of body can be 64 of memory.
#: Names and texts of ten thousand jobs, and their batch; no job has a list.
MAX_STRINGS = 150_000
MAX_LISTS = 1_000
#: A smaller body cannot make enough of either to matter.
COUNTED_BYTES = 64 << 10
_MARK = re.compile(rb'["\[]|(?:\\.)+', re.DOTALL)


class _Reader:
    """The scanner's hooks, which see what the values no longer show."""

    def __init__(self) -> None:
        self.objects = 0

    def object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self.objects += 1
        if self.objects > MAX_OBJECTS:
            _refuse(f"more than {MAX_OBJECTS} objects")
        found = dict(pairs)
        if len(found) > MAX_NAMES:
            _refuse(f"more than {MAX_NAMES} names in one object")
        if len(found) != len(pairs):
            _refuse("a key appears twice in one object")
        return found

    @staticmethod
    def integer(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            _refuse("a number has too many digits")
        return int(digits)

    @staticmethod
    def float(text: str) -> float:
        found = float(text)
        if found in {float("inf"), float("-inf")}:
            _refuse("a number is too large")
        return found

    @staticmethod
    def constant(_: str) -> NoReturn:
        raise Problem("malformed-json", "NaN and Infinity are not JSON.")


def _refuse(why: str) -> NoReturn:
    raise Problem("invalid-request", errors=[Fault("", why)])


def parse(body: bytes | bytearray) -> Any:
    """Return the value of one JSON text.

    Raises:
        Problem: malformed-json (it is none) or invalid-request (it is one that is not taken).

    """
    if len(body) > COUNTED_BYTES:
        _count(body)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise Problem("malformed-json", "The body is not UTF-8.") from None
    reader = _Reader()
    try:
        value = json.loads(
            text,
            object_pairs_hook=reader.object,
            parse_int=reader.integer,
            parse_float=reader.float,
            parse_constant=reader.constant,
        )
    except json.JSONDecodeError as error:
        raise Problem("malformed-json", f"{error.msg} at character {error.pos}.") from None
    except RecursionError:
        raise Problem("malformed-json", f"Nested deeper than {MAX_DEPTH}.") from None
    _inspect(value)
    return value


def _count(body: bytes | bytearray) -> None:
    """Refuse a body with more strings and lists than any request has."""
    inside = False
    strings = lists = 0
    for mark in _MARK.finditer(body):
        byte = body[mark.start()]
        if byte == ord('"'):
            inside = not inside
            strings += inside
        elif byte == ord("[") and not inside:
            lists += 1
        if strings > MAX_STRINGS or lists > MAX_LISTS:
            _refuse("too many values")


def _inspect(value: Any) -> None:
    """Refuse text that cannot be stored, and deep nesting; without recursion, whatever the depth."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                _inspect_text(item)
            elif isinstance(item, dict):
                found = cast("dict[str, Any]", item)
                below.extend(found.keys())
                below.extend(found.values())
            elif isinstance(item, list):
                below.extend(cast("Sequence[Any]", item))
        if not below:
            return
        level = below
    raise Problem("malformed-json", f"Nested deeper than {MAX_DEPTH}.")


def _inspect_text(text: str) -> None:
    if "\0" in text:
        _refuse("the character U+0000 cannot be stored")
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        _refuse("a lone surrogate is no character")
