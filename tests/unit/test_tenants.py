"""Who a key stands for, as the tenants file says it at each moment, and what that lets them have."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from cluster import public
from cluster.gateway import tenants as module
from cluster.gateway.api_keys import ApiKey, matches, new_key, parse
from cluster.gateway.authorisation import authorise
from cluster.gateway.errors import Forbidden, InvalidRequest
from cluster.gateway.identity import OPEN, WorkClass
from cluster.gateway.tenants import Tenants, TenantsUnavailable, Unauthenticated
from cluster.gateway.tenants_file import TenantsError, salt_of
from cluster.gateway.tenants_file import parse as parse_file
from policies.ladder import CACHED, DEFERRED, SHORT_OUTPUT, SMALL_MODEL, ClassRungs
from policies.priority import Priority

MODEL, SMALL = "brownout-tiny", "brownout-tiny-small"
KEYS = {name: new_key() for name in ("web", "desk", "late", "gone", "reports")}
SECRET = "s3cret-0123456789abcdef0123456789abcdef"
FILE = f"""
salt_secret = "{SECRET}"

[classes.fraud_explanation]
lowest_rung = "short_output"
small_model = false
[classes.chat]
[classes.summary]
priority = "sheddable_plus"
deferrable = true
cacheable = true

[tenants.acme]
models = ["{MODEL}", "{SMALL}"]
tools = ["get_price"]
priority_ceiling = "critical"
classes = ["fraud_explanation", "chat", "summary"]
[tenants.acme.quotas]
requests_per_minute = 5
[[tenants.acme.principals.web.keys]]
id = "{KEYS["web"].id}"
sha256 = "{KEYS["web"].digest}"
[[tenants.acme.principals.web.keys]]
id = "{KEYS["late"].id}"
sha256 = "{KEYS["late"].digest}"
expires_at = 2026-06-01T00:00:00
[[tenants.acme.principals.web.keys]]
id = "{KEYS["gone"].id}"
sha256 = "{KEYS["gone"].digest}"
revoked_at = 2026-06-01T00:00:00Z
[tenants.acme.principals.desk]
roles = ["caller", "operator"]
[[tenants.acme.principals.desk.keys]]
id = "{KEYS["desk"].id}"
sha256 = "{KEYS["desk"].digest}"

[tenants.reports]
priority_ceiling = "sheddable_plus"
classes = ["summary"]
default_class = "summary"
[[tenants.reports.principals.batch.keys]]
id = "{KEYS["reports"].id}"
sha256 = "{KEYS["reports"].digest}"
"""
JUNE = 1_780_272_000.0
"""2026-06-01T00:00:00Z."""


def scope(key: ApiKey | str | None = None, **headers: str) -> dict[str, Any]:
    """Return a request as ASGI has it, with a key and further headers (``tenant``, ``priority``, ``service_class``)."""
    names = {
        "tenant": public.HEADER_TENANT,
        "priority": public.HEADER_PRIORITY,
        "service_class": public.HEADER_CLASS,
    }
    sent = [(names[name].encode(), value.encode()) for name, value in headers.items()]
    if key is not None:
        text = f"Bearer {key.text}" if isinstance(key, ApiKey) else key
        sent.append((b"authorization", text.encode()))
    return {"type": "http", "headers": sent}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tenants.toml"
    put(path, FILE)
    return path


def put(path: Path, text: str) -> None:
    """Put the file there as the command does: in one step."""
    scratch = path.with_suffix(".new")
    scratch.write_text(text)
    scratch.replace(path)


def known(file: Path, **options: Any) -> Tenants:
    return Tenants(file, MODEL, **options)


def refused(tenants: Tenants, given: dict[str, Any]) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as error:
        tenants.identify(given)
    assert error.value.status == 401
    assert error.value.headers == {"www-authenticate": "Bearer"}
    return error.value


def test_a_key_stands_for_a_principal_and_all_that_it_may(file: Path) -> None:
    who = known(file).identify(scope(KEYS["web"]))
    assert (who.tenant, who.principal, who.key_id) == ("acme", "web", KEYS["web"].id)
    assert who.roles == {"caller"}
    assert who.models == {MODEL, SMALL}
    assert who.may_ask("get_price")
    assert not who.may_ask("submit_transfer")
    assert who.quotas.requests_per_minute == 5
    assert known(file).identify(scope(KEYS["desk"])).roles == {"caller", "operator"}
    plain = known(file).identify(scope(KEYS["reports"]))
    assert plain.models == {MODEL}, "who names no model has the first"
    assert plain.tools == frozenset()


@pytest.mark.parametrize("text", ["bearer {}", "BEARER {}", "Bearer   {}"])
def test_the_scheme_is_written_in_any_way(file: Path, text: str) -> None:
    assert known(file).identify(scope(text.format(KEYS["web"].text))).tenant == "acme"


def _wrong_secret() -> ApiKey:
    return ApiKey(KEYS["web"].id, "0" * 64)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (scope(), "missing"),
        (scope(""), "malformed"),
        (scope("Bearer"), "malformed"),
        (scope("Bearer none"), "malformed"),
        (scope(f"Basic {KEYS['web'].text}"), "malformed"),
        (scope(KEYS["web"].text), "malformed"),
        (scope(f"Bearer {KEYS['web'].text} "), ""),
        (scope(f"Bearer {KEYS['web'].text}0"), "malformed"),
        (scope(new_key()), "unknown"),
        (scope(_wrong_secret()), "wrong"),
        (scope(ApiKey(KEYS["web"].id, KEYS["desk"].secret)), "wrong"),
        (scope(ApiKey(KEYS["web"].id, KEYS["web"].digest)), "wrong"),
        (scope(KEYS["gone"]), "revoked"),
        ({"type": "http", "headers": scope(KEYS["web"])["headers"] * 2}, "malformed"),
    ],
)
def test_nobody_else_is_let_in(file: Path, given: dict[str, Any], reason: str) -> None:
    counted: list[str] = []
    tenants = known(file, counted=counted.append)
    if not reason:
        assert tenants.identify(given).tenant == "acme"
        return
    assert refused(tenants, given).reason == reason
    assert counted == [reason]


def test_every_wrong_key_is_refused_in_the_same_words(file: Path) -> None:
    tenants = known(file)
    said = {
        str(refused(tenants, scope(key)))
        for key in (new_key(), _wrong_secret(), KEYS["gone"], "Bearer x", "x")
    }
    assert len(said) == 1, "or the words would tell which keys there are"


def test_a_key_ends_when_it_says(file: Path) -> None:
    assert known(file, now=lambda: JUNE - 1).identify(scope(KEYS["late"])).principal == "web"
    assert refused(known(file, now=lambda: JUNE), scope(KEYS["late"])).reason == "expired"


def test_the_same_work_is_done_for_ids_that_nobody_has(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str | None]] = []

    def watched(key: ApiKey, digest: str | None) -> bool:
        compared.append((key.id, digest))
        return matches(key, digest)

    monkeypatch.setattr(module, "matches", watched)
    tenants, stranger = known(file), new_key()
    tenants.identify(scope(KEYS["web"]))
    refused(tenants, scope(stranger))
    assert compared == [(KEYS["web"].id, KEYS["web"].digest), (stranger.id, None)]


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from cluster.gateway import api_keys

    calls: list[tuple[bytes, bytes]] = []

    def watched(a: bytes, b: bytes) -> bool:
        calls.append((a, b))
        return a == b

    monkeypatch.setattr(api_keys.hmac, "compare_digest", watched)
    key = KEYS["web"]
    assert matches(key, key.digest)
    assert not matches(key, KEYS["desk"].digest)
    assert not matches(key, None)
    assert [len(a) == len(b) == 64 for a, b in calls] == [True] * 3


def test_a_key_does_not_show_in_what_is_printed_of_it() -> None:
    key = new_key()
    assert key.secret not in repr(key)
    assert parse(key.text) == key
    assert len(key.secret) * 4 == 256, "bits"


# --- the file changes --------------------------------------------------------------------------------------


def test_a_revoked_key_fails_on_the_next_request(file: Path) -> None:
    tenants = known(file)
    tenants.identify(scope(KEYS["web"]))
    put(file, FILE.replace(KEYS["web"].digest, "0" * 64))
    assert refused(tenants, scope(KEYS["web"])).reason == "wrong"
    put(file, FILE)
    assert tenants.identify(scope(KEYS["web"])).tenant == "acme"


def test_a_change_in_place_that_keeps_size_and_time_is_seen(file: Path) -> None:
    os.utime(file, (1_000_000, 1_000_000))
    tenants = known(file)
    tenants.identify(scope(KEYS["web"]))
    with file.open("r+") as same:
        same.write(FILE.replace(KEYS["web"].digest, "0" * 64))
    os.utime(file, (1_000_000, 1_000_000))
    refused(tenants, scope(KEYS["web"]))


def test_a_second_change_within_one_tick_of_the_file_systems_clock_is_seen(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that the file system notes tells the two apart, so a file that is so new is not trusted to be read."""
    monkeypatch.setattr(module, "_signature", lambda state: (1, 2, 3, 4))
    tenants = known(file)
    tenants.identify(scope(KEYS["web"]))
    with file.open("r+") as same:
        same.write(FILE.replace(KEYS["web"].digest, "0" * 64))
    refused(tenants, scope(KEYS["web"]))


def test_a_file_that_did_not_change_is_not_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    tenants = known(file)
    read = Tenants._read
    monkeypatch.setattr(Tenants, "_read", lambda self, path: (reads.append(path), read(self, path))[1])
    os.utime(file, (1_000_000, 1_000_000))
    for _ in range(10):
        tenants.identify(scope(KEYS["web"]))
    assert len(reads) == 1


@pytest.mark.parametrize("broken", ["not toml [", "", FILE + "\nfoo = 1\n", None, b"\xff"])
def test_while_the_file_cannot_be_used_nobody_is_let_in(
    file: Path, broken: str | bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[str] = []
    tenants = known(file, counted=counted.append)
    tenants.identify(scope(KEYS["web"]))
    if broken is None:
        file.unlink()
    elif isinstance(broken, bytes):
        file.write_bytes(broken)
    else:
        put(file, broken)
    for _ in range(3):
        with pytest.raises(TenantsUnavailable) as error:
            tenants.identify(scope(KEYS["web"]))
        assert str(file) not in str(error.value), "the client is not told why"
        with pytest.raises(TenantsUnavailable):
            tenants.of_key(KEYS["web"].id)
    assert counted == ["unavailable"] * 3
    said = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(said) == 1, "it is said once"
    assert str(file) in said[0]
    assert not any(secret in said[0] for secret in (SECRET, *(key.digest for key in KEYS.values())))
    with pytest.raises(TenantsError):
        tenants.require()
    put(file, FILE)
    assert tenants.identify(scope(KEYS["web"])).tenant == "acme"


def test_what_is_done_later_asks_for_the_rights_of_that_moment(file: Path) -> None:
    tenants = known(file, now=lambda: JUNE)
    who = tenants.identify(scope(KEYS["web"]))
    assert tenants.current(who) == who
    put(file, FILE.replace(f', "{SMALL}"]', "]"))
    now = tenants.current(who)
    assert now is not None
    assert not now.may_use(SMALL)
    assert tenants.of_key(KEYS["late"].id) is None
    assert tenants.of_key(KEYS["gone"].id) is None
    assert tenants.of_key("nobody") is None


# --- open mode ---------------------------------------------------------------------------------------------


def test_without_a_file_everybody_is_let_in_and_says_who_they_are() -> None:
    tenants = Tenants(None, MODEL)
    for key in (None, KEYS["web"], "Bearer none"):
        who = tenants.identify(scope(key))
        assert (who.tenant, who.principal, who.key_id) == ("default", "anonymous", "")
        assert who.open
    given = scope(tenant="blue", priority="critical_plus", service_class="anything")
    who, standing = authorise(tenants.identify(given), given, model="any", methods=["any"])
    assert (who.tenant, standing.tenant) == ("blue", "blue")
    assert (standing.priority, standing.service_class) == (Priority.CRITICAL_PLUS, "anything")
    assert who.cache_salt not in ("", OPEN.cache_salt)


# --- what somebody may -------------------------------------------------------------------------------------


def allowed(file: Path, name: str, model: str = MODEL, methods: tuple[str, ...] = (), **headers: str) -> Any:
    given = scope(KEYS[name], **headers)
    return authorise(known(file).identify(given), given, model=model, methods=methods)[1]


@pytest.mark.parametrize(
    ("name", "headers", "priority", "service_class"),
    [
        ("web", {}, Priority.CRITICAL, ""),
        ("web", {"service_class": "chat"}, Priority.CRITICAL, "chat"),
        ("web", {"service_class": "summary"}, Priority.SHEDDABLE_PLUS, "summary"),
        ("web", {"service_class": "summary", "priority": "critical"}, Priority.CRITICAL, "summary"),
        ("web", {"priority": "sheddable"}, Priority.SHEDDABLE, ""),
        ("web", {"tenant": "acme"}, Priority.CRITICAL, ""),
        ("reports", {}, Priority.SHEDDABLE_PLUS, "summary"),
        ("reports", {"priority": "sheddable"}, Priority.SHEDDABLE, "summary"),
    ],
)
def test_standing_comes_from_the_file_and_within_it_from_the_headers(
    file: Path, name: str, headers: dict[str, str], priority: Priority, service_class: str
) -> None:
    standing = allowed(file, name, **headers)
    assert (standing.priority, standing.service_class) == (priority, service_class)
    assert standing.tenant == ("reports" if name == "reports" else "acme")


@pytest.mark.parametrize(
    ("name", "asked", "code", "param"),
    [
        ("web", {"tenant": "reports"}, "wrong_tenant", public.HEADER_TENANT),
        ("web", {"priority": "critical_plus"}, "priority_not_allowed", public.HEADER_PRIORITY),
        ("reports", {"priority": "critical"}, "priority_not_allowed", public.HEADER_PRIORITY),
        ("reports", {"service_class": "chat"}, "class_not_allowed", public.HEADER_CLASS),
        ("web", {"service_class": "nothing"}, "class_not_allowed", public.HEADER_CLASS),
        ("reports", {"model": SMALL}, "model_not_allowed", "model"),
        ("web", {"methods": ("get_price", "submit_transfer")}, "tool_not_allowed", "tool_call.method"),
        ("reports", {"methods": ("get_price",)}, "tool_not_allowed", "tool_call.method"),
    ],
)
def test_what_the_file_does_not_allow_is_forbidden(
    file: Path, name: str, asked: dict[str, Any], code: str, param: str
) -> None:
    with pytest.raises(Forbidden) as error:
        allowed(file, name, **asked)
    assert (error.value.status, error.value.code, error.value.param) == (403, code, param)


@pytest.mark.parametrize("name", [public.HEADER_TENANT, public.HEADER_PRIORITY, public.HEADER_CLASS])
def test_a_header_that_is_there_twice_is_refused(file: Path, name: str) -> None:
    given = scope(KEYS["web"])
    given["headers"] += [(name.encode(), b"acme"), (name.encode(), b"acme")]
    with pytest.raises(InvalidRequest) as error:
        authorise(known(file).identify(given), given, model=MODEL)
    assert (error.value.status, error.value.code) == (400, "repeated_header")


def test_rungs_follow_the_class_and_the_models(file: Path) -> None:
    web, reports = (known(file).identify(scope(KEYS[name])) for name in ("web", "reports"))
    reach = {
        (who.tenant, service_class): [
            rung
            for rung in (SHORT_OUTPUT, SMALL_MODEL, CACHED, DEFERRED)
            if who.reaches(rung, service_class, SMALL)
        ]
        for who, service_class in (
            (web, ""),
            (web, "chat"),
            (web, "summary"),
            (web, "fraud_explanation"),
            (reports, "summary"),
        )
    }
    assert reach == {
        ("acme", ""): [SHORT_OUTPUT, SMALL_MODEL],
        ("acme", "chat"): [SHORT_OUTPUT],
        ("acme", "summary"): [SHORT_OUTPUT, SMALL_MODEL, CACHED, DEFERRED],
        ("acme", "fraud_explanation"): [SHORT_OUTPUT],
        ("reports", "summary"): [SHORT_OUTPUT, CACHED, DEFERRED],
    }


def test_critical_work_is_not_moved_by_the_level(file: Path) -> None:
    classes = known(file).identify(scope(KEYS["web"])).classes
    assert classes["fraud_explanation"] == WorkClass(rungs=ClassRungs(lowest=SHORT_OUTPUT), small_model=False)
    assert classes["summary"].rungs == ClassRungs.down_to(DEFERRED)


def test_each_tenant_has_a_salt_that_only_the_file_gives_away(file: Path) -> None:
    salts = {name: known(file).identify(scope(KEYS[name])).cache_salt for name in ("web", "desk", "reports")}
    assert salts["web"] == salts["desk"] == salt_of(SECRET, "acme")
    assert salts["web"] != salts["reports"]
    put(file, FILE.replace(SECRET, SECRET[::-1]))
    assert known(file).identify(scope(KEYS["web"])).cache_salt != salts["web"]
    assert salts["web"] not in repr(known(file).identify(scope(KEYS["web"])))


# --- errors of the file ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            f'salt_secret = "{SECRET}"',
            "",
            "top level: field 'salt_secret' is missing; give it at least 32 random",
        ),
        (SECRET, "short", r"field 'salt_secret' has value \(not shown\).*'brownout keys add' fill it in"),
        (
            "[classes.chat]",
            '[classes.chat]\npriority = "urgent"',
            r"\[classes.chat\]: field 'priority' has value 'urgent'",
        ),
        (
            "[classes.chat]",
            "[classes.chat]\ncachable = true",
            "unknown field 'cachable': did you mean cacheable?",
        ),
        (
            "deferrable = true",
            'deferrable = "yes"',
            r"\[classes.summary\]: field 'deferrable' has value 'yes'",
        ),
        (
            'lowest_rung = "short_output"',
            'lowest_rung = "refuse"',
            "field 'lowest_rung' has value 'refuse'.*must be one of full",
        ),
        ("tools =", "tool =", r"\[tenants.acme\]: unknown field 'tool': did you mean tools?"),
        (
            '"chat", "summary"]',
            '"chat", "sumary"]',
            "tenants.acme: field 'classes' has value 'sumary'.*did you mean summary",
        ),
        (
            'default_class = "summary"',
            'default_class = "chat"',
            "tenants.reports: field 'default_class' has value 'chat'",
        ),
        (
            "requests_per_minute = 5",
            "requests_per_minute = 0",
            r"\[tenants.acme.quotas\]: field 'requests_per_minute' has value 0",
        ),
        ("requests_per_minute", "request_per_minute", "did you mean requests_per_minute"),
        (
            KEYS["desk"].id,
            KEYS["web"].id,
            "tenants.acme.principals.desk: field 'id' has value.*acme.principals.web has a key",
        ),
        (
            KEYS["web"].digest,
            "abc",
            r"\[tenants.acme.principals.web.keys.0\]: field 'sha256' has value \(not shown\)",
        ),
        (
            'roles = ["caller", "operator"]',
            'roles = ["admin"]',
            r"\[tenants.acme.principals.desk\]: field 'roles' has value 'admin'",
        ),
        (
            'classes = ["summary"]',
            'classes = ["summary", "chat"]',
            "field 'priority_ceiling' has value 'sheddable_plus'.*'chat'",
        ),
    ],
    ids=lambda value: "",  # the keys are new in each process, and names of tests must not be
)
def test_an_error_names_table_field_value_and_mend(old: str, new: str, said: str) -> None:
    assert FILE.count(old) >= 1
    with pytest.raises(TenantsError, match=said) as error:
        parse_file(FILE.replace(old, new, 1), "tenants.toml")
    assert str(error.value).startswith("tenants.toml: ")
    assert SECRET not in str(error.value)
