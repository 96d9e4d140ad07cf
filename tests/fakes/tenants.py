"""A tenants file for tests: two tenants with their keys, written as the command writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cluster import public
from cluster.gateway.api_keys import ApiKey, new_key

SALT_SECRET = "0f" * 32
HEAD = f"""
salt_secret = "{SALT_SECRET}"
[classes.fraud_explanation]
small_model = false
[classes.chat]
priority = "sheddable"
lowest_rung = "small_model"
[classes.summary]
priority = "sheddable_plus"
deferrable = true
cacheable = true
"""
ACME = f"""
[tenants.acme]
models = ["{public.MODEL_NAME}", "{public.SMALL_MODEL_NAME}"]
tools = ["get_price"]
classes = ["fraud_explanation", "chat", "summary"]
"""
BETA = """
[tenants.beta]
priority_ceiling = "critical"
classes = ["chat", "summary"]
"""


@dataclass
class TenantsFile:
    """The file, and the keys in it by ``tenant/principal``. ``more`` goes into a tenant's table or behind it."""

    path: Path
    keys: dict[str, ApiKey] = field(
        default_factory=lambda: {name: new_key() for name in ("acme/web", "acme/desk", "beta/web")}
    )
    more: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.write()

    def write(self, *, without: str = "") -> None:
        """Replace the file in one step; the key ``without`` is not in it."""
        parts = [HEAD]
        for tenant, text in (("acme", ACME), ("beta", BETA)):
            parts += [text, self.more.get(tenant, "")]
            for name, key in self.keys.items():
                if name.startswith(f"{tenant}/") and name != without:
                    principal = name.partition("/")[2]
                    parts.append(f"[[tenants.{tenant}.principals.{principal}.keys]]")
                    parts.append(f'id = "{key.id}"\nsha256 = "{key.digest}"')
        scratch = self.path.with_suffix(".new")
        scratch.write_text("\n".join(parts))
        scratch.replace(self.path)

    def bearer(self, name: str = "acme/web") -> dict[str, str]:
        """Return the header that a client with that key sends."""
        return {"authorization": f"Bearer {self.keys[name].text}"}
