"""``brownout keys``: what it does to the tenants file, what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chaos.cli import main as brownout
from cluster.gateway import tenants_edit
from cluster.gateway.api_keys import ApiKey, matches, parse
from cluster.gateway.keys import EXIT_USAGE, main
from cluster.gateway.tenants_file import parse as parse_file

COMMENTED = """\
# Ours. Ask Ann before you change it.
salt_secret = "0123456789abcdef0123456789abcdef"

[classes.chat]  # what people type
priority = "critical"

[tenants.acme]
classes = ["chat"]   # no summaries yet

[tenants.acme.quotas]
requests_per_minute = 60

[tenants.acme.principals.web]
roles = ["caller"]

[[tenants.acme.principals.web.keys]]  # the first one
id = "first1"
sha256 = "aa00000000000000000000000000000000000000000000000000000000000000"

# The other tenant: do not touch.
[tenants.other]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tenants.toml"
    path.write_text(COMMENTED)
    return path


def run(file: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command; return its exit code and what it printed."""
    code = main([arguments[0], "--file", str(file), *arguments[1:]])
    said = capsys.readouterr()
    return code, said.out, said.err


def made(file: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> ApiKey:
    """Run a command that makes a key; return the key."""
    code, out, err = run(file, capsys, *arguments)
    assert code == 0, err
    key = parse(out.strip())
    assert key is not None
    assert out == key.text + "\n", "the key and nothing else is on standard output"
    assert key.secret not in err
    assert key.secret not in file.read_text(), "only its digest is kept"
    return key


def listed(file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    code, out, _ = run(file, capsys, "list", "--json")
    assert code == 0
    return {row["key"]: row for row in json.loads(out)}


def test_a_key_is_added_beside_everything_that_was_there(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = made(file, capsys, "add", "acme", "web", "--expires-in", "90d")
    [_, kept] = parse_file(file.read_text(), file).tenants["acme"].principals["web"].keys
    assert matches(key, kept.sha256)
    assert kept.expires_at is not None
    assert timedelta(days=89) < kept.expires_at - datetime.now(UTC) <= timedelta(days=90)
    remaining = iter(file.read_text().splitlines())
    assert all(line in remaining for line in COMMENTED.splitlines()), (
        "every line is there still, in its order"
    )


def test_a_new_principal_gets_its_roles(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(file, capsys, "add", "other", "desk", "--role", "operator", "--role", "caller")
    assert parse_file(file.read_text(), file).tenants["other"].principals["desk"].roles == [
        "operator",
        "caller",
    ]


def test_the_first_key_makes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new.toml"
    code, _, err = run(file, capsys, "add", "acme", "web")
    assert (code, file.exists()) == (EXIT_USAGE, False)
    assert "--new" in err
    made(file, capsys, "add", "acme", "web", "--new")
    assert file.stat().st_mode & 0o777 == 0o600
    first = parse_file(file.read_text(), file)
    made(file, capsys, "add", "beta", "web", "--new")
    assert parse_file(file.read_text(), file).salt_secret == first.salt_secret, "caches stay whose they are"


def test_the_example_becomes_a_file_that_can_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text((Path(__file__).parents[2] / "tenants.toml.example").read_text())
    code, _, err = run(file, capsys, "check")
    assert code == EXIT_USAGE
    assert "salt_secret" in err
    made(file, capsys, "add", "acme", "web")
    assert run(file, capsys, "check")[0] == 0


def test_a_tenant_that_is_not_there_is_not_made_by_a_slip(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(file, capsys, "add", "acne", "web")
    assert (code, out) == (EXIT_USAGE, "")
    assert "did you mean acme?" in err
    assert file.read_text() == COMMENTED


def test_revoking_ends_a_key_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, capsys, "revoke", "first1")[0] == 0
    assert listed(file, capsys)["first1"]["state"] == "revoked"
    assert "# The other tenant: do not touch." in file.read_text()
    code, _, err = run(file, capsys, "revoke", "first1")
    assert code == EXIT_USAGE
    assert "has ended already" in err
    code, _, err = run(file, capsys, "revoke", "first2")
    assert code == EXIT_USAGE
    assert "there is no key 'first2'; first1" in err


def test_rotating_ends_the_old_key_at_once_or_after_the_grace(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = made(file, capsys, "rotate", "first1", "--grace", "1h")
    third = made(file, capsys, "rotate", second.id)
    rows = listed(file, capsys)
    assert [rows[key]["state"] for key in ("first1", second.id, third.id)] == ["valid", "revoked", "valid"]
    left = datetime.fromisoformat(rows["first1"]["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=59) < left <= timedelta(hours=1)
    assert {rows[key]["principal"] for key in rows} == {"web"}


def test_a_grace_does_not_lengthen_a_keys_life(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = made(file, capsys, "add", "acme", "web", "--expires-in", "1h")
    ends = listed(file, capsys)[short.id]["expires_at"]
    made(file, capsys, "rotate", short.id, "--grace", "2d")
    assert listed(file, capsys)[short.id]["expires_at"] == ends


def test_no_list_shows_a_secret_or_its_digest(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = made(file, capsys, "add", "acme", "web")
    for more in ((), ("--json",)):
        _, out, err = run(file, capsys, "list", *more)
        assert key.id in out
        assert not any(
            secret in out + err for secret in (key.secret, key.digest, "0123456789abcdef", "aa000000")
        )


def test_a_file_that_is_wrong_is_left_alone(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in (COMMENTED + "[tenants.acme.quota]\n", "x = ["):
        file.write_text(text)
        code, out, err = run(file, capsys, "add", "acme", "web")
        assert (code, out) == (EXIT_USAGE, "")
        assert str(file) in err
        assert file.read_text() == text


def test_a_write_that_fails_leaves_the_old_file(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tenants_edit.os, "fsync", full)
    code, out, err = run(file, capsys, "add", "acme", "web")
    assert (code, out) == (EXIT_USAGE, "")
    assert "No space left" in err
    assert file.read_text() == COMMENTED
    assert sorted(os.listdir(file.parent)) == ["tenants.toml", "tenants.toml.lock"]


def test_writers_wait_for_each_other(file: Path) -> None:
    codes: list[int] = []

    def add() -> None:
        codes.append(main(["add", "--file", str(file), "acme", "web"]))

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0] * 8
    assert len(parse_file(file.read_text(), file).tenants["acme"].principals["web"].keys) == 9


def test_wrong_usage_ends_with_4(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in ([], ["add"], ["remove"], ["rotate", "k", "--grace", "soon"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == EXIT_USAGE


def test_the_command_line_of_the_project_passes_it_on(
    file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWNOUT_TENANTS_FILE", str(file))
    assert brownout(["tenants", "check"]) == 0
    assert "in order; 2 tenants, 1 keys, 1 classes" in capfd.readouterr().out
    assert brownout(["keys", "revoke", "nobody"]) == EXIT_USAGE
    assert "there is no key 'nobody'" in capfd.readouterr().err
