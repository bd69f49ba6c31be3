"""Every setting of every process: one `ONCOMMIT_...` variable each, read once at start.

`oncommit config` prints this table. A variable `X` may also be given as `X_FILE`, a path whose
content is the value (for secrets mounted as files).
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from runtime import failpoint_names

PREFIX = "ONCOMMIT_"


class SettingsError(ValueError):
    """A variable is missing or out of range; the message names it and says what to set."""


class Settings(BaseSettings):
    """What a process may be told. Units are in the names or in the descriptions."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        extra="ignore",
        frozen=True,
        # Composed files hand variables on that nobody has set: those are empty.
        env_ignore_empty=True,
        allow_inf_nan=False,
    )

    database_url: SecretStr = Field(
        default=SecretStr("postgresql://localhost/oncommit"),
        description="PostgreSQL, as this process's own role (oncommit_portal, _relay, _worker, ...)",
    )
    replication_url: SecretStr | None = Field(
        default=None,
        description="PostgreSQL for the relay's stream: a role with REPLICATION, never through a pooler; "
        "default: the database URL",
    )
    redis_url: SecretStr = Field(
        default=SecretStr("redis://127.0.0.1:6379/0"),
        description="Redis >= 7 or Valkey, policy noeviction; its content is disposable",
    )
    namespace: str = Field(
        default="oncommit", pattern=r"^[a-z0-9_-]{1,40}$", description="prefix of every key in Redis"
    )
    blobs: Path = Field(
        default=Path(".oncommit/blobs"),
        description="folder of documents and previews, shared by portal and workers",
    )
    host: str = Field(default="127.0.0.1", description="the portal's address, also of health pages")
    port: int = Field(default=8080, ge=0, le=65535, description="the portal's port; 0: any free one")
    health_port: int = Field(
        default=0, ge=0, le=65535, description="health and metrics of relay and workers; 0: any free one"
    )
    health_file: Path | None = Field(
        default=None, description="where relay and workers write the URL of their health page"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe line that is written"
    )
    traces: str = Field(
        default="off",
        pattern=r"^(off|otlp|file:.+)$",
        description="record spans: off; otlp, to the collector of OTEL_EXPORTER_OTLP_ENDPOINT; file:PATH, "
        "a JSON line each; needs the extra oncommit[tracing]",
    )
    decoder: Literal["auto", "wal2json", "pgoutput"] = Field(
        default="auto", description="the slot's output plugin; auto: wal2json where the server allows it"
    )
    slot: str = Field(
        default="oncommit_relay", pattern=r"^[a-z0-9_]{1,63}$", description="the relay's replication slot"
    )
    publication: str = Field(
        default="oncommit_outbox", pattern=r"^[a-z0-9_]{1,63}$", description="what pgoutput streams"
    )
    audit_seconds: float = Field(
        default=60.0, ge=1, description="the relay looks so often for intents that old and not in Redis"
    )
    max_document_bytes: int = Field(
        default=50_000_000, ge=1, le=5_000_000_000, description="largest document a team may put, bytes"
    )
    team_requests_per_second: float = Field(
        default=1_000.0, gt=0, description="requests of one team that one portal process answers, more: 429"
    )
    simulation: bool = Field(
        default=False, description="accept `simulate` in jobs: for tests and demonstrations only"
    )
    render_log: Path | None = Field(
        default=None, description="every render appends one JSON line at start and one at end"
    )
    render_timeout_seconds: float = Field(
        default=60.0, gt=0, le=3600, description="a render that takes longer is a failed attempt"
    )
    render_memory_mb: int = Field(
        default=512, ge=64, description="address space that a render may add to its process, MB"
    )
    render_output_bytes: int = Field(
        default=16_000_000, ge=1024, description="largest preview a render may return, bytes"
    )
    backoff_base_ms: int = Field(
        default=1_000, ge=0, le=3_600_000, description="delay before the second attempt, doubling after"
    )
    backoff_cap_ms: int = Field(
        default=600_000, ge=0, le=86_400_000, description="no retry waits longer than this"
    )
    worker_lost_seconds: float = Field(
        default=15.0, ge=2, description="a worker whose heartbeat stands still for so long is lost"
    )
    shutdown_grace_seconds: float = Field(
        default=20.0, ge=0, description="after SIGTERM a render has so long to end before it is released"
    )
    failpoints: str = Field(
        default="", description="test faults, `name=kill|raise|pause:FILE`, comma separated; empty: none"
    )

    @field_validator("failpoints")
    @classmethod
    def _known(cls, given: str) -> str:
        failpoint_names.armed(given)
        return given

    @field_validator("port", mode="before")
    @classmethod
    def _no_service_link(cls, given: object) -> object:
        # Kubernetes says tcp://... here, in each pod beside a Service that is called oncommit.
        linked = isinstance(given, str) and given.startswith("tcp://")
        return cls.model_fields["port"].default if linked else given


def _from_files() -> None:
    for name, path in list(os.environ.items()):
        if not path or not name.startswith(PREFIX) or not name.endswith("_FILE"):
            continue
        target = name.removesuffix("_FILE")
        if name.lower() in _REAL_FILE_FIELDS or os.environ.get(target):
            continue
        try:
            os.environ[target] = Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise SettingsError(f"{name}: cannot read {path}: {error.strerror}") from error
        except ValueError:  # its text may quote what is in the file
            raise SettingsError(f"{name}: cannot read {path}: it is no text in UTF-8") from None


_REAL_FILE_FIELDS = frozenset(
    f"{PREFIX.lower()}{field}" for field in Settings.model_fields if field.endswith("_file")
)


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return this process's settings, read from the environment at the first call.

    Raises:
        SettingsError: a variable is wrong; the message names it, never its value.

    """
    _from_files()
    try:
        return Settings()
    except ValidationError as error:
        wrong = "; ".join(
            f"{PREFIX}{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors(include_input=False)
        )
        raise SettingsError(f"{wrong} (`oncommit config` lists every variable)") from None
