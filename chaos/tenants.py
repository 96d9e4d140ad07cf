"""The tenants of an experiment: a tenants file with fresh keys, and a gateway that goes by it while the run lasts."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.experiment import Experiment
from chaos.substrate import Substrate, SubstrateError

FILE: Final = "tenants-of-the-experiment.toml"
OWN_KEY: Final = "BROWNOUT_API_KEY"
"""Environment variable with a key for a cluster whose tenants file is not an experiment's."""
SETTING: Final = "BROWNOUT_TENANTS_FILE"


@dataclass(frozen=True, slots=True)
class Tenants:
    """``keys`` has what goes after ``Bearer`` by the names that the experiment gives its keys."""

    file: Path | None = None
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)

    def key_id(self, name: str) -> str:
        """Return the public part of a key, by which it can be revoked."""
        return self.keys[name].split("_")[1]


def own_key() -> str:
    """Return the caller's own key, for a cluster that asks for one; empty without."""
    return os.environ.get(OWN_KEY, "")


async def made_for(experiment: Experiment, substrate: Substrate, run_dir: Path) -> Tenants:
    """Write the experiment's tenants file with a key for each principal that it names.

    The first key is also what everything is sent with that has no key of its own; without tenants the caller's own is.

    Raises:
        SubstrateError: a key could not be made.
    """
    if not experiment.tenants:
        return Tenants(keys={"": own_key()})
    file = run_dir / FILE
    file.write_text(f'salt_secret = "{secrets.token_hex(32)}"\n\n{experiment.tenants}')
    file.chmod(0o600)
    keys: dict[str, str] = {}
    try:
        for name, whose in experiment.keys.items():
            tenant, principal = whose.split("/")
            ended = await substrate.gateway_command("keys", "add", tenant, principal, "--file", str(file))
            if ended.code != 0:
                raise SubstrateError(f"no key could be made for {whose}: {ended.errors.strip()[-300:]}")
            keys[name] = ended.output.strip()
    except BaseException:
        discard(file)
        raise
    return Tenants(file, {"": next(iter(keys.values()), ""), **keys})


def discard(file: Path) -> None:
    """Remove a tenants file, and the lock that ``brownout keys`` has left beside it. Safe twice."""
    for path in (file, file.with_name(f"{file.name}.lock")):
        path.unlink(missing_ok=True)


def settings_of(experiment: Experiment, tenants: Tenants) -> dict[str, str]:
    """Return the environment variables with which the gateway is to run; none where it can stay as it is."""
    own = {SETTING: str(tenants.file)} if tenants.file else {}
    return {**experiment.gateway, **own}
