"""The exit codes of every `oncommit` command: this is the one place; docs/runbook.md shows the same table."""

TROUBLE = 1  #: It could not be done, or not all of it; what is said names what to do.
USAGE = 2  #: An argument, a file, a variable or a token is missing or cannot be right: nothing was begun.
LIMIT_REACHED = 3  #: A time limit passed; what was begun goes on.
INTERRUPTED = 130  #: Ctrl-C, SIGTERM or SIGHUP ended it before its end: 128 + SIGINT, as shells say it.

MEANINGS = {
    0: "done",
    TROUBLE: "it could not be done, or not all of it",
    USAGE: "wrong usage: an argument, a file, a variable or a token is missing or cannot be right",
    LIMIT_REACHED: "a time limit was reached; what was begun goes on",
    INTERRUPTED: "interrupted",
}
EPILOG = f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in MEANINGS.items())}."
