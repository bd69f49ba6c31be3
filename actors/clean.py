"""Texts that come out of a renderer, made fit for PostgreSQL, JSON, logs and terminals."""

#: Bytes of UTF-8 that an event keeps of an error's text.
MAX_ERROR_BYTES = 2048
MAX_CLASS_LENGTH = 100  # the schema's limit for `error_class`


def clean(text: str, limit: int = MAX_ERROR_BYTES) -> str:
    """Return `text` as one line that PostgreSQL, JSON and a terminal can hold, of at most `limit` bytes.

    Control characters (NUL, ANSI escapes, newlines), lone surrogates and direction marks become spaces.
    """
    # No more than `limit` characters can fit: an error text of 100 MB is not worth walking through.
    line = "".join(c if c.isprintable() else " " for c in text[: limit * 2])
    return " ".join(line.split()).encode()[:limit].decode(errors="ignore")
