"""Settings: each secret may lie in a file, and a wrong one is named without being shown."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from ops.commands.config import variables
from runtime import settings as module
from runtime.settings import PREFIX, Settings, SettingsError, settings

SECRETS = [name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        # Set and taken away again: whatever the test lets in by a file is undone with it.
        monkeypatch.setenv(f"{PREFIX}{name.upper()}", "")
        monkeypatch.delenv(f"{PREFIX}{name.upper()}")
    module.settings.cache_clear()


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_may_lie_in_a_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_text("scheme://me:hunter2@host/x\n")
    monkeypatch.setenv(f"{PREFIX}{name.upper()}_FILE", str(file))
    value = getattr(settings(), name)
    module.settings.cache_clear()
    assert isinstance(value, SecretStr)
    assert value.get_secret_value() == "scheme://me:hunter2@host/x"
    assert "hunter2" not in repr(value)


@pytest.mark.parametrize("name", SECRETS)
def test_a_file_that_cannot_be_read_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{PREFIX}{name.upper()}_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(SettingsError, match=f"{name.upper()}_FILE: cannot read"):
        settings()
    module.settings.cache_clear()


def test_config_and_the_runbook_name_the_file_form_of_each_secret() -> None:
    rows = {row["name"]: row for row in variables() if row["secret"]}
    assert set(rows) == {f"{PREFIX}{name.upper()}" for name in SECRETS} | {"ONCOMMIT_TOKEN"}
    runbook = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text(encoding="utf-8")
    for name, row in rows.items():
        assert row["file"] == f"{name}_FILE"
        assert f"`{row['file']}`" in runbook
