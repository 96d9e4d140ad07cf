"""The tenants file: who may ask, for what and for how much. What it says is checked as a whole, or nothing of it holds.

Every error names the file, the table, the field, the value and the mend, so that whoever edits it by hand needs no
other help. Secrets are never in an error: a digest or a salt is said to be wrong without being shown.
"""

from __future__ import annotations

import difflib
import hashlib
import hmac
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cluster.gateway.api_keys import KEY_ID
from cluster.gateway.identity import CALLER, ROLES, Identity, QuotaLimits, WorkClass
from policies.ladder import BY_PRIORITY, REFUSE, RUNGS, ClassRungs
from policies.priority import Priority

NAME: Final = r"[A-Za-z0-9._:@/~-]{1,128}"
"""Of a tenant, a principal, a class: what a header may carry too."""
SALT_SECRET_LEAST: Final = 32
PriorityName = Literal["critical_plus", "critical", "sheddable_plus", "sheddable"]
Rung = Literal["full", "short_output", "short_context", "no_tools", "small_model", "cached", "deferred"]
Named = Annotated[str, Field(pattern=f"^{NAME}$")]
Count = Annotated[int, Field(ge=1, strict=True)]


class TenantsError(ValueError):
    """The tenants file cannot be used; one line for each thing that is wrong in it."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KeyTable(_Table):
    """One key of a principal; ``sha256`` is the digest of its secret. Times without an offset are meant in UTC."""

    id: Annotated[str, Field(pattern=f"^{KEY_ID}$")]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    created_at: datetime | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    """Once it is there the key has ended, whenever that is."""

    @field_validator("created_at", "expires_at", "revoked_at")
    @classmethod
    def _in_utc(cls, value: datetime | None) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value

    def state(self, now: datetime) -> Literal["valid", "revoked", "expired"]:
        """Return whether the key holds."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and now >= self.expires_at else "valid"


class PrincipalTable(_Table):
    """Somebody or something that asks in a tenant's name."""

    roles: Annotated[list[Literal["caller", "operator"]], Field(min_length=1)] = [CALLER]
    keys: list[KeyTable] = []


class QuotaTable(_Table):
    """What a tenant may have in each minute."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None


class ClassTable(_Table):
    """A class of work."""

    priority: PriorityName = "critical"
    lowest_rung: Rung | None = None
    deferrable: Annotated[bool, Field(strict=True)] = False
    cacheable: Annotated[bool, Field(strict=True)] = False
    small_model: Annotated[bool, Field(strict=True)] = True

    def work_class(self) -> WorkClass:
        """Return what it means. Critical work is not moved by the ladder's level, only by a refusal."""
        priority = Priority.of(self.priority)
        lowest = self.lowest_rung
        if lowest is None:
            lowest = "deferred" if self.deferrable else "cached" if self.cacheable else None
        if lowest is None:
            rungs = BY_PRIORITY[priority]
        elif priority <= Priority.CRITICAL:
            rungs = ClassRungs(lowest=lowest)
        else:
            rungs = ClassRungs.down_to(lowest)
        return WorkClass(priority, rungs, self.deferrable, self.cacheable, self.small_model)


class TenantTable(_Table):
    """A tenant; without ``models`` it may use the first model only, without ``tools`` none."""

    models: Annotated[list[str], Field(min_length=1)] | None = None
    tools: list[str] = []
    priority_ceiling: PriorityName = "critical"
    classes: list[str] = []
    default_class: str | None = None
    quotas: QuotaTable = QuotaTable()
    principals: dict[Named, PrincipalTable] = {}


class TenantsTable(_Table):
    """The whole file."""

    salt_secret: Annotated[str, Field(min_length=SALT_SECRET_LEAST)]
    classes: dict[Named, ClassTable] = {}
    tenants: Annotated[dict[Named, TenantTable], Field(min_length=1)]

    @model_validator(mode="after")
    def _holds_together(self) -> TenantsTable:
        owner: dict[str, str] = {}
        for name, tenant in self.tenants.items():
            for one in tenant.classes:
                _known(f"tenants.{name}", "classes", one, list(self.classes), "add the table [classes.{}]")
                if Priority.of(self.classes[one].priority) < Priority.of(tenant.priority_ceiling):
                    raise ValueError(
                        f"tenants.{name}: field 'priority_ceiling' has value {tenant.priority_ceiling!r}: "
                        f"its class {one!r} has priority {self.classes[one].priority!r}; raise the ceiling, or "
                        "leave the class out"
                    )
            if tenant.default_class is not None:
                _known(
                    f"tenants.{name}",
                    "default_class",
                    tenant.default_class,
                    tenant.classes,
                    "add it to classes",
                )
            for principal, table in tenant.principals.items():
                for key in table.keys:
                    where = f"tenants.{name}.principals.{principal}"
                    if key.id in owner:
                        raise ValueError(
                            f"{where}: field 'id' has value {key.id!r}: {owner[key.id]} has a key of that id too; "
                            "an id finds one key, revoke one of them"
                        )
                    owner[key.id] = where
        return self


def _known(table: str, field: str, value: str, known: list[str], mend: str) -> None:
    if value not in known:
        near = difflib.get_close_matches(value, known, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else mend.format(value)
        raise ValueError(f"{table}: field {field!r} has value {value!r}: there is no such class; {hint}")


class Book:
    """What a tenants file says, ready to be looked up by key id. ``model`` is what a tenant may use that names none."""

    def __init__(self, table: TenantsTable, model: str) -> None:
        self.table = table
        self.classes = {name: one.work_class() for name, one in table.classes.items()}
        self._keys: dict[str, tuple[KeyTable, Identity]] = {}
        for tenant, says in table.tenants.items():
            for principal, who in says.principals.items():
                for key in who.keys:
                    self._keys[key.id] = key, self._identity(tenant, says, principal, who, key, model)

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._keys)

    def find(self, key_id: str) -> tuple[KeyTable, Identity] | None:
        """Return the key of that id and whose it is, expired or not."""
        return self._keys.get(key_id)

    def _identity(
        self, tenant: str, says: TenantTable, principal: str, who: PrincipalTable, key: KeyTable, model: str
    ) -> Identity:
        return Identity(
            tenant,
            principal,
            key.id,
            roles=frozenset(who.roles),
            models=frozenset(says.models or (model,)),
            tools=frozenset(says.tools),
            ceiling=Priority.of(says.priority_ceiling),
            classes={name: self.classes[name] for name in says.classes},
            default_class=says.default_class or "",
            quotas=QuotaLimits(says.quotas.requests_per_minute, says.quotas.tokens_per_minute),
            cache_salt=salt_of(self.table.salt_secret, tenant),
        )


def salt_of(secret: str, tenant: str) -> str:
    """Return the ``cache_salt`` of a tenant's prompts: who does not have the secret cannot name another's."""
    return hmac.new(secret.encode(), f"cache_salt\n{tenant}".encode(), hashlib.sha256).hexdigest()


def parse(text: str, path: Path | str) -> TenantsTable:
    """Return what the text of a tenants file says.

    Raises:
        TenantsError: it cannot be used.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TenantsError(f"{path}: is not valid TOML ({error}); mend that line") from None
    try:
        return TenantsTable.model_validate(raw)
    except ValidationError as error:
        lines = [f"{path}: {_line(problem, raw)}" for problem in error.errors(include_url=False)]
        raise TenantsError("\n".join(lines)) from None


_SECRET: Final = ("salt_secret", "sha256")
_MENDS: Final = {
    "salt_secret": f"give it at least {SALT_SECRET_LEAST} random characters, or let 'brownout keys add' fill it in",
    "sha256": "it is the SHA-256 of the key's secret, 64 hexadecimal digits; 'brownout keys add' makes one",
    "tenants": "add a table [tenants.NAME], or let 'brownout keys add NAME PRINCIPAL' do it",
    "priority": f"it must be one of {', '.join(one.label for one in Priority)}",
    "priority_ceiling": f"it must be one of {', '.join(one.label for one in Priority)}",
    "lowest_rung": f"it must be one of {', '.join(rung for rung in RUNGS if rung != REFUSE)}",
    "roles": f"each must be one of {', '.join(ROLES)}",
}


def _line(problem: Any, raw: dict[str, Any]) -> str:
    """Return what is wrong, as ``[table]: field 'x' has value ...: mend``."""
    steps = [step for step in problem["loc"] if step != "[key]"]
    if not steps:  # said by the check of the whole, in full
        return str(problem["msg"]).removeprefix("Value error, ")
    *inside, last = _to_field(steps)
    table = f"[{'.'.join(map(str, inside))}]" if inside else "top level"
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(last), _fields(inside), n=3)
        mend = f"did you mean {', '.join(close)}?" if close else f"it can have {', '.join(_fields(inside))}"
        return f"{table}: unknown field {last!r}: {mend}"
    mend = _MENDS.get(str(last), "")
    if problem["type"] == "missing":
        return f"{table}: field {last!r} is missing; {mend or 'add it'}"
    shown = "(not shown)" if last in _SECRET else repr(problem["input"])[:80]
    return f"{table}: field {last!r} has value {shown}: {problem['msg']}" + (f"; {mend}" if mend else "")


def _to_field(steps: list[int | str]) -> list[int | str]:
    """Cut the place of an item of a list of words down to the field that has the list."""
    while len(steps) > 1 and isinstance(steps[-1], int):
        steps = steps[:-1]
    return steps


def _fields(inside: list[int | str]) -> list[str]:
    """Return the fields of the table at that place."""
    kind: type[_Table] = TenantsTable
    by_length: dict[tuple[str, int], type[_Table]] = {
        ("classes", 2): ClassTable,
        ("tenants", 2): TenantTable,
        ("tenants", 3): QuotaTable,
        ("tenants", 4): PrincipalTable,
        ("tenants", 6): KeyTable,
    }
    if inside:
        kind = by_length.get((str(inside[0]), len(inside)), kind)
    return list(kind.model_fields)
