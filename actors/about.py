"""The fields of a log line about a job: the same four on every one, so that one search finds all of them."""

from db.claims import Claim


def about(claim: Claim) -> dict[str, str | int]:
    """Return the fields of a line about this claim."""
    return {
        "job": str(claim.job),
        "team": claim.team,
        "dispatch": claim.dispatch_no,
        "attempt": claim.attempt,
    }
