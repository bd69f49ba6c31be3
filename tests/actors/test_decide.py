"""The decision after an error, and its backoff, for any input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.clean import MAX_CLASS_LENGTH, MAX_ERROR_BYTES, clean
from actors.decide import FREE_RELEASES, Decision, backoff, decide
from actors.errors import (
    DocumentError,
    InfrastructureError,
    RenderCrashed,
    RenderStopped,
    Stop,
    UnsupportedDocument,
)
from db.claims import How

DAY_MS = 86_400_000
ERRORS = st.sampled_from(
    [
        DocumentError("x"),
        UnsupportedDocument("x"),
        InfrastructureError("x"),
        RenderCrashed(-9),
        RenderStopped(Stop.SHUTDOWN),
        RenderStopped(Stop.CANCELLED),
        ValueError("a fault of ours"),
        PermissionError(13, "Permission denied"),
    ]
)


def decided(
    error: Exception, attempt: int = 1, most: int = 3, releases: int = 0, base: int = 1000
) -> Decision:
    return decide(
        error,
        attempt=attempt,
        max_attempts=most,
        releases=releases,
        message_id="acme|j.1",
        base_ms=base,
        cap_ms=600_000,
    )


@given(st.integers(1, 2000), st.text(), st.integers(0, 3_600_000), st.integers(0, DAY_MS))
def test_a_backoff_is_never_above_the_cap_nor_below_half_of_the_full_wait(
    failures: int, message_id: str, base: int, cap: int
) -> None:
    wait = backoff(failures, message_id.encode(errors="replace").decode(), base, cap)
    full = min(cap, base * 2 ** (failures - 1))
    assert full // 2 <= wait <= full
    assert wait == backoff(failures, message_id.encode(errors="replace").decode(), base, cap)


def test_a_base_of_zero_means_no_wait_and_a_thousand_failures_do_not_overflow() -> None:
    assert backoff(7, "acme|j.7", 0, 1000) == 0
    assert 50_000 <= backoff(1000, "acme|j.1000", 1, 100_000) <= 100_000


def test_jobs_that_fail_together_do_not_return_together() -> None:
    waits = [backoff(3, f"acme|{n}.3", 1000, DAY_MS) for n in range(500)]
    assert min(waits) < 2200
    assert max(waits) > 3800
    assert len(set(waits)) > 400


@given(ERRORS, st.integers(1, 1000), st.integers(0, 999), st.integers(0, 50))
def test_no_decision_breaks_the_bounds_of_the_job(
    error: Exception, attempt: int, spare: int, releases: int
) -> None:
    most = min(attempt + spare, 1000)
    decision = decided(error, attempt, most, releases)
    if decision.how is How.FAILED:
        assert attempt < most, "the last attempt's failure is dead, not retrying"
    if decision.how is How.RELEASED and decision.spend:
        assert attempt < most, "a release that spends the last attempt is dead"
    assert 0 <= decision.delay_ms <= 600_000
    assert 1 <= len(decision.error_class) <= MAX_CLASS_LENGTH


def test_a_documents_error_spends_attempts_up_to_the_last() -> None:
    assert decided(DocumentError("x"), 1, 2).how is How.FAILED
    assert decided(DocumentError("x"), 2, 2).how is How.DIED
    assert decided(DocumentError("x"), 1, 1).how is How.DIED
    assert decided(ValueError("bug"), 3, 3).how is How.DIED


def test_an_error_without_a_printable_word_is_told_by_its_name() -> None:
    assert decided(DocumentError("\x00\x1b\r\n")).error_text == "DocumentError"


def test_a_permanent_error_is_dead_at_once() -> None:
    assert decided(UnsupportedDocument("x"), 1, 1000).how is How.DIED


@pytest.mark.parametrize(
    "error", [InfrastructureError("disk full"), PermissionError(13, "the store is shut")]
)
def test_infrastructure_spends_nothing_ten_times_and_then_each_time(error: Exception) -> None:
    for releases in range(FREE_RELEASES):
        decision = decided(error, 1, 1, releases)
        assert (decision.how, decision.spend) == (How.RELEASED, False)
    assert decided(error, 1, 2, FREE_RELEASES) == decided(error, 1, 2, FREE_RELEASES)
    assert (decided(error, 1, 2, FREE_RELEASES).how, decided(error, 1, 2, FREE_RELEASES).spend) == (
        How.RELEASED,
        True,
    )
    assert decided(error, 2, 2, FREE_RELEASES).how is How.DIED


def test_a_deploy_never_spends_and_returns_at_once() -> None:
    decision = decided(RenderStopped(Stop.SHUTDOWN), 3, 3, 100)
    assert (decision.how, decision.spend, decision.delay_ms) == (How.RELEASED, False, 0)
    assert decision.error_class == "Shutdown"
    assert decided(RenderStopped(Stop.CANCELLED), 3, 3).how is How.CANCELLED


@given(st.text(st.characters(), max_size=3000), st.integers(0, 300))
def test_a_cleaned_text_is_one_printable_line_within_the_limit(text: str, limit: int) -> None:
    cleaned = clean(text, limit)
    assert len(cleaned.encode()) <= limit
    assert cleaned.isprintable()


def test_texts_of_renderers_cannot_forge_lines_or_break_the_database() -> None:
    assert clean("a\x00b\x1b[31mc\nd\ud800e\u202ef") == "a b [31mc d e f"
    assert clean("ä" * MAX_ERROR_BYTES) == "ä" * (MAX_ERROR_BYTES // 2)
    assert decided(DocumentError("\x00", error_class="\n" * 200)).error_class == "Error"
    assert decided(DocumentError("")).error_text == "DocumentError"
