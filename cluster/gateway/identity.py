"""Who asks, and what they may: what a key stands for, or what everybody is where no keys are asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from policies.ladder import CACHED, DEFERRED, SMALL_MODEL, ClassRungs, depth
from policies.priority import Priority

CALLER: Final = "caller"
OPERATOR: Final = "operator"
ROLES: Final = (CALLER, OPERATOR)
"""``caller`` asks for answers; ``operator`` also sees what belongs to other principals of the same tenant."""


@dataclass(frozen=True, slots=True)
class WorkClass:
    """A kind of work, and how little of an answer it can do with.

    ``rungs`` says between which rungs of the ladder it may be answered (None: as its priority does), ``deferrable``
    that it may be done later, ``cacheable`` that an earlier answer to the same request will do, ``small_model`` that
    the smaller model will.
    """

    priority: Priority = Priority.CRITICAL
    rungs: ClassRungs | None = None
    deferrable: bool = False
    cacheable: bool = False
    small_model: bool = True


PLAIN: Final = WorkClass()
"""Work of no class: never put off, never answered from the cache."""
OPEN_CLASSES: Final[Mapping[str, WorkClass]] = MappingProxyType(
    {
        "summary": WorkClass(Priority.SHEDDABLE_PLUS, ClassRungs.down_to(DEFERRED), deferrable=True),
        "reconciliation": WorkClass(Priority.SHEDDABLE, ClassRungs.down_to(DEFERRED), deferrable=True),
    }
)
"""What may be put off in open mode; any other class is plain there."""


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """What a tenant may have in each minute; None sets no bound."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Of prompts and outputs together."""


UNBOUNDED: Final = QuotaLimits()


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller of one request, as its key says; never as its headers say.

    Where ``models`` or ``tools`` is None, nothing of that kind is closed to them.
    """

    tenant: str
    principal: str
    key_id: str = ""
    """Public part of the key; empty in open mode."""
    roles: frozenset[str] = frozenset({CALLER})
    models: frozenset[str] | None = None
    tools: frozenset[str] | None = None
    """Methods of the tool."""
    ceiling: Priority = Priority.CRITICAL_PLUS
    """The highest priority that they may ask for."""
    classes: Mapping[str, WorkClass] = field(default_factory=lambda: OPEN_CLASSES, hash=False)
    default_class: str = ""
    """Of a request that names none."""
    quotas: QuotaLimits = UNBOUNDED
    cache_salt: str = field(default="", repr=False)
    """Keeps the prefix cache of one tenant from another's prompts; a secret where keys are asked for."""

    @property
    def open(self) -> bool:
        """Tell whether this is everybody: no key was asked for."""
        return not self.key_id

    def may_use(self, model: str) -> bool:
        """Tell whether answers may come from that model."""
        return self.models is None or model in self.models

    def may_ask(self, method: str) -> bool:
        """Tell whether that method of the tool may be asked."""
        return self.tools is None or method in self.tools

    def work_class(self, name: str) -> WorkClass:
        """Return what a class of work means for them; what has no class, or one of theirs no more, is plain."""
        return self.classes.get(name, PLAIN)

    def reaches(self, rung: str, service_class: str, small_model: str) -> bool:
        """Tell whether work of that class may be answered at a rung of the ladder."""
        work = self.work_class(service_class)
        if rung == SMALL_MODEL:
            allowed = work.small_model and self.may_use(small_model)
        elif rung == CACHED:
            allowed = work.cacheable
        elif rung == DEFERRED:
            allowed = work.deferrable
        else:
            allowed = True
        return allowed and (work.rungs is None or depth(rung) <= depth(work.rungs.lowest))

    def of_tenant(self, tenant: str) -> Identity:
        """Return the same in open mode, where the caller's own word says which tenant it is."""
        return replace(self, tenant=tenant, cache_salt=open_salt(tenant))


def open_salt(tenant: str) -> str:
    """Return the salt of a tenant in open mode: apart from others', the same on every gateway, and no secret."""
    return hashlib.sha256(f"open mode\n{tenant}".encode()).hexdigest()


OPEN: Final = Identity("default", "anonymous", cache_salt=open_salt("default"))
"""Everybody, where no tenants file is configured."""
