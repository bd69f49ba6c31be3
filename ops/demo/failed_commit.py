"""Act 3: a commit that fails. Not the statement fails but the COMMIT itself, by a deferred trigger."""

from collections.abc import Generator
from contextlib import contextmanager

from ops.demo.claims import Act
from ops.demo.stage import Stage

KEY = "failed-commit"
MARK = "this commit fails"

# Deferred: it strikes at COMMIT, when every row has been written. Disk full is what a commit really meets.
# SECURITY DEFINER: the portal's role may not read what the trigger looks at.
ADD_FUNCTION = """
CREATE FUNCTION demo_refuse_commit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM jobs j WHERE preview_message_id(j.team, j.id, j.dispatch_no) = NEW.message_id
                                  AND j.title = 'this commit fails') THEN
    RAISE EXCEPTION 'the demonstration refuses this commit' USING ERRCODE = 'disk_full';
  END IF;
  RETURN NULL;
END $$
"""
ADD_TRIGGER = """
CREATE CONSTRAINT TRIGGER demo_refuse_commit AFTER INSERT ON outbox
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION demo_refuse_commit()
"""
DROP_TRIGGER = "DROP TRIGGER demo_refuse_commit ON outbox"
DROP_FUNCTION = "DROP FUNCTION demo_refuse_commit()"

ROWS = """
SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM job_events),
       (SELECT count(*) FROM outbox), (SELECT count(*) FROM requests)
"""
JOBS = "SELECT count(*) FROM jobs WHERE title = %s"
REQUESTS = "SELECT count(*) FROM requests WHERE key = %s"


def commit_fails(stage: Stage) -> Act:
    """Make a commit fail; nothing of it exists, and its key can be used again."""
    act = Act("after: a commit is made to fail")
    with act.clock():
        before = _rows(stage)
        with _refusing(stage):
            answer = stage.post(KEY, MARK)
        act.claim("answer", expected=503, measured=answer.status_code)
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        act.claim("its kind", expected="application/problem+json", measured=media_type)
        act.claim(
            "rows it left in jobs, events, outbox, requests",
            expected=[0, 0, 0, 0],
            measured=_more(stage, before),
        )
        act.claim("jobs of its title", expected=0, measured=stage.number(JOBS, MARK))
        act.claim("requests of its key", expected=0, measured=stage.number(REQUESTS, KEY))
        again = stage.post(KEY, MARK)
        act.claim("answer to the same key afterwards", expected=202, measured=again.status_code)
        jobs = [again.json()["id"]] if "id" in again.json() else []
        stage.wait_ended(jobs)
        act.claim("its status", expected={"succeeded": 1}, measured=stage.statuses(jobs))
        act.claim(
            "rendered exactly once, by the render log", expected=1, measured=stage.witness.count(jobs).once
        )
    return act


@contextmanager
def _refusing(stage: Stage) -> Generator[None]:
    stage.admin.execute(ADD_FUNCTION)
    stage.admin.execute(ADD_TRIGGER)
    try:
        yield
    finally:
        stage.admin.execute(DROP_TRIGGER)
        stage.admin.execute(DROP_FUNCTION)


def _rows(stage: Stage) -> list[int]:
    return list(stage.admin.execute(ROWS).fetchone() or ())


def _more(stage: Stage, before: list[int]) -> list[int]:
    return [now - then for now, then in zip(_rows(stage), before, strict=True)]
