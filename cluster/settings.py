"""The only reader of the environment and of the configuration file.

Precedence: environment variable ``BROWNOUT_<FIELD>`` over ``brownout.toml`` (or the file that
``BROWNOUT_CONFIG`` names) over the defaults here. Every error names the file or variable, the field, the
value and the mend.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from cluster import public
from cluster.gateway.store.address import parse_address, without_password
from policies.work_queue import QueueRules

_OWN_BYTES_PER_TOKEN: Final = 4096
"""KV cache that a token of the project's own model takes."""


class SettingsError(ValueError):
    """A configuration value that cannot be used; the text says where it stands and how to mend it."""


class Settings(BaseModel):
    """Everything that can be configured, with its default; durations in seconds, sizes in bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    # model and engine
    model: str = ""
    """Path or hub id of a model; empty means the small model that the project builds."""
    model_name: str = public.MODEL_NAME
    """The name under which it is served."""
    replicas: int = Field(3, ge=1, le=32)
    small_model: str = ""
    """Path or hub id of the model for degraded answers, with the same tokenizer; empty means the project's own."""
    small_model_name: str = public.SMALL_MODEL_NAME
    small_replicas: int = Field(0, ge=0, le=32)
    """Replicas of the smaller model; 0 deploys none. Each takes 1.2 GB."""
    max_num_seqs: int = Field(8, ge=1, le=1024)
    """Sequences that a replica decodes together; also the slots that the gateway counts with."""
    max_model_len: int = Field(4096, ge=256)
    kv_cache_bytes: int = Field(48 * 1024 * 1024, ge=4 * 1024 * 1024)
    """48 MiB hold 12,288 tokens of the small model: three full contexts, not four."""
    kv_cache_tokens: int = Field(0, ge=0)
    """Tokens that a replica's KV cache holds (for ``admission``); 0 means unknown, but for the project's own model."""
    pace: Literal["on", "off"] = "on"
    pace_base_s: float = Field(0.040, ge=0, le=5)
    """At 0.030 three full replicas need nearly all of two cores, and calibration finds that they share them."""
    pace_per_token_s: float = Field(0.0002, ge=0, le=1)
    small_pace_base_s: float = Field(0.020, ge=0, le=5)
    """``pace_base_s`` of the smaller model."""
    cache_dir: Path = Path("~/.cache/brownout")

    # where things listen
    bind_host: str = "127.0.0.1"
    """Host that the project's own servers listen on; containers use 0.0.0.0."""
    link_listen_host: str = "127.0.0.1"
    """Host that the link proxy listens on, as the link proxy sees it."""
    link_connect_host: str = "127.0.0.1"
    """Host under which the gateway reaches the link proxy."""
    gateway_host: str = "127.0.0.1"
    """Host under which the link proxy reaches the gateway."""
    links_host: str = "127.0.0.1"
    """Host under which the gateway reaches the links service."""
    toxiproxy_host: str = "127.0.0.1"
    ray_host: str = "127.0.0.1"
    """Host of the Ray head: its GCS and its dashboard, whose REST answer names the replicas."""
    port_client: int = Field(public.PORT_CLIENT, ge=1, le=65535)
    port_gateway: int = Field(public.PORT_GATEWAY, ge=1, le=65535)
    port_gateway_admin: int = Field(public.PORT_GATEWAY_ADMIN, ge=1, le=65535)
    port_links: int = Field(public.PORT_LINKS, ge=1, le=65535)
    port_toxiproxy: int = Field(public.PORT_TOXIPROXY, ge=1, le=65535)
    port_tool_link: int = Field(public.PORT_TOOL_LINK, ge=1, le=65535)
    port_store_link: int = Field(public.PORT_STORE_LINK, ge=1, le=65535)
    """Where link ``store`` listens, if there is one."""
    port_replica_links: int = Field(public.PORT_REPLICA_LINKS, ge=1, le=65000)
    port_ray_gcs: int = Field(public.PORT_RAY_GCS, ge=1, le=65535)
    port_ray_client: int = Field(public.PORT_RAY_CLIENT, ge=1024, le=65535)
    """Ray Client's server; nobody uses it here, but Ray cannot do without it."""
    port_ray_dashboard: int = Field(public.PORT_RAY_DASHBOARD, ge=1, le=65535)
    port_ingress: int = Field(public.PORT_INGRESS, ge=1024, le=65000)

    # store
    store: str = Field("sqlite", repr=False)
    """What must not be lost is kept here: ``sqlite`` (a file in the run folder), ``sqlite:///FILE``,
    ``postgresql://USER:PASSWORD@HOST:PORT/DATABASE``, or ``none``."""
    store_answer_s: float = Field(5.0, gt=0, le=600)
    """Longest wait for a transaction; a call that cannot do without it is refused then."""
    store_upstream: str = ""
    """``HOST:PORT`` of the PostgreSQL behind link ``store``, for the links service; empty: there is no such link."""

    # gateway
    profile: Literal["naive", "retry-only", "resilient"] = "resilient"
    with_policies: str = ""
    """Policies to switch on beyond the profile's, with commas: ``hedging``, ``throttling``."""
    gateways: int = Field(1, ge=1, le=40)
    """Gateways that share the replicas: each takes its part of the retry budget."""
    header_timeout_s: float = Field(1.0, gt=0)
    """Longest wait for a replica's response headers in the profile ``resilient``."""
    first_token_timeout_s: float = Field(5.0, gt=0)
    """Longest wait for a replica's first token, counted from the start of the attempt."""
    stall_timeout_s: float = Field(10.0, gt=0)
    """Longest silence inside a stream after which its replica counts as lost."""
    attempt_timeout_s: float = Field(2.0, gt=0)
    """Longest whole attempt in the profile ``retry-only``, however well it goes."""
    default_deadline_s: float = Field(60.0, gt=0)
    """Deadline of a call whose client names none."""
    ttft_objective_s: float = Field(5.0, gt=0)
    """A call whose predicted first token is later than this is refused at once (``early_rejection``)."""
    tool_deadline_s: float = Field(1.0, gt=0)
    idempotency_lease_s: float = Field(6.0, ge=0.3, le=600)
    """How long an idempotency key stays blocked after the gateway that worked on its request has crashed."""
    max_resumes: int = Field(8, ge=1, le=1000)
    """How often one answer that is cut is continued on another replica (``resume``)."""
    positional_sampling: bool | None = None
    """Draw seeded tokens with noise keyed by their position, so that such answers can be continued too. Needs
    replicas that do it; left out it is on for the project's own model at its modelled pace."""
    short_output_share: float = Field(0.5, gt=0, le=1)
    """Rung ``short_output``: this share of the limit on the output that was asked for."""
    short_output_tokens: int = Field(64, ge=1)
    """The same where no limit was asked for."""
    short_context_tokens: int = Field(1024, ge=16)
    """Rung ``short_context``: tokens of prompt down to which a chat loses its oldest turns."""
    ladder_dwell_s: float = Field(3.0, ge=0.25)
    """How long the ladder stays at a level in calm before it goes a rung up."""
    class_rungs: str = ""
    """How far down the ladder a class of calls (``x-brownout-class``) may go, as ``fraud=full,summary=small_model``.
    Others go by their priority."""
    cacheable_classes: str = ""
    """Classes of calls, with commas, that may be answered from the answer cache where there is no tenants file (which
    says it itself). docs/cache.md"""
    model_revision: str = Field("1", min_length=1, max_length=128)
    """Revision of the served model: answers that were kept under another one are not given. ``PUT /admin/revision``
    changes it while the gateway runs."""
    cache_fresh_s: float = Field(60.0, gt=0)
    """How old an answer from the cache may be."""
    cache_stale_s: float = Field(600.0, gt=0)
    """The same for a call that would be refused, or fails, and may go down to the rung ``cached``."""
    cache_wait_s: float = Field(10.0, ge=0)
    """Longest wait for the answer to the same question that another call has asked already."""
    cache_lookup_s: float = Field(0.25, gt=0)
    """Longest wait for the store when an answer is looked for; a store that is slower than that is gone without."""
    cache_answer_bytes: int = Field(256 * 1024, ge=0)
    """Longest answer that is kept."""
    cache_tenant_bytes: int = Field(64 * 1024 * 1024, ge=0)
    """What is kept of a tenant's answers in the store; the oldest go first."""
    cache_memory_bytes: int = Field(16 * 1024 * 1024, ge=0)
    """What a gateway keeps of them in memory besides."""
    cache_wrong_cost_s: float = Field(60.0, ge=0)
    """Replica-seconds that a wrong answer is taken to cost, for the metric ``brownout_cache_value_seconds``."""
    jobs_most: int = Field(50_000, ge=1)
    """Jobs that wait or are worked on at most (docs/jobs.md); one more is refused."""
    jobs_most_tokens: int = Field(20_000_000, ge=1)
    """Their work together at most, in tokens of prompts and expected outputs."""
    jobs_tenant_share: float = Field(0.5, gt=0, le=1)
    """What one tenant may have of either."""
    job_longest_wait_s: float = Field(3600.0, gt=0)
    """A job that nobody has begun by then expires."""
    job_attempts: int = Field(3, ge=1, le=100)
    """How often a job is begun at most."""
    job_lease_s: float = Field(10.0, ge=0.3, le=600)
    """How soon another gateway takes over the jobs of one that was killed."""
    job_age_s: float = Field(300.0, gt=0)
    """Each time that a job has waited so long it counts as one priority higher."""
    job_keep_s: float = Field(86_400.0, gt=0)
    """How long results are kept."""
    max_body_bytes: int = Field(2 * 1024 * 1024, ge=1024)
    tenants_file: str = ""
    """File of tenants, keys, quotas and classes of work (docs/tenants.md); empty lets everybody in, without a key."""

    @field_validator("store")
    @classmethod
    def _store_can_be_named(cls, value: str) -> str:
        parse_address(value, Path())
        return value

    @field_validator("store_upstream")
    @classmethod
    def _upstream_has_a_port(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value and not (host and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError("is not HOST:PORT, as postgres:5432")
        return value

    @field_validator("with_policies")
    @classmethod
    def _policies_exist(cls, value: str) -> str:
        known = (*public.POLICIES, *public.OPTIONAL_POLICIES)
        for name in filter(None, map(str.strip, value.split(","))):
            if name not in known:
                near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known
                raise ValueError(f"no policy is called {name!r}: did you mean {', '.join(near)}?")
        return value

    @field_validator("class_rungs")
    @classmethod
    def _rungs_exist(cls, value: str) -> str:
        known = public.RUNGS[:-1]
        for name, rung in _pairs(value):
            if not name or rung not in known:
                raise ValueError(f"'{name}={rung}' is not CLASS=RUNG with a rung of {', '.join(known)}")
        return value

    @field_validator("small_replicas")
    @classmethod
    def _small_model_suits(cls, value: int, info: ValidationInfo) -> int:
        if value and info.data.get("model") and not info.data.get("small_model"):
            raise ValueError(
                "the project's own smaller model has another tokenizer than yours; set small_model too"
            )
        if value and info.data.get("model_name") == info.data.get("small_model_name"):
            raise ValueError("both models have the same name; set small_model_name to another one")
        return value

    @property
    def rungs_by_class(self) -> dict[str, str]:
        """Return ``class_rungs`` taken apart."""
        return dict(_pairs(self.class_rungs))

    @property
    def cacheable(self) -> frozenset[str]:
        """Return ``cacheable_classes`` taken apart."""
        return frozenset(name for name, _ in _pairs(self.cacheable_classes))

    @property
    def queue_rules(self) -> QueueRules:
        """Return the bounds of the queue of jobs."""
        return QueueRules(
            most_jobs=self.jobs_most,
            most_tokens=self.jobs_most_tokens,
            tenant_share=self.jobs_tenant_share,
            longest_wait_s=self.job_longest_wait_s,
            lease_s=self.job_lease_s,
            most_attempts=self.job_attempts,
            age_s=self.job_age_s,
            keep_s=self.job_keep_s,
        )

    @property
    def models_share_tokenizer(self) -> bool:
        """Tell whether the smaller model is known to have the tokenizer of the first."""
        return not self.model and not self.small_model

    @property
    def samples_by_position(self) -> bool:
        if self.positional_sampling is None:
            return not self.model and self.pace == "on"
        return self.positional_sampling

    @property
    def usable_cache_tokens(self) -> int | None:
        """Return the tokens that may be in flight at a replica; None where nothing is known of its cache.

        A tenth is left free: blocks are not filled to their ends, and outputs come out longer than expected.
        """
        known = self.kv_cache_tokens or (0 if self.model else self.kv_cache_bytes // _OWN_BYTES_PER_TOKEN)
        return int(0.9 * known) or None

    @property
    def toxiproxy_url(self) -> str:
        return f"http://{self.toxiproxy_host}:{self.port_toxiproxy}"

    @property
    def links_url(self) -> str:
        return f"http://{self.links_host}:{self.port_links}"

    @property
    def dashboard_url(self) -> str:
        return f"http://{self.ray_host}:{self.port_ray_dashboard}"

    @property
    def cache_path(self) -> Path:
        return self.cache_dir.expanduser()


def _pairs(text: str) -> list[tuple[str, str]]:
    """Take ``a=b, c=d`` apart; what has no ``=`` has an empty right side."""
    parts = [part.partition("=") for part in text.split(",") if part.strip()]
    return [(name.strip(), value.strip()) for name, _, value in parts]


_NO_FIELDS = frozenset({"BROWNOUT_CONFIG", "BROWNOUT_RUN_DIR", public.RUN_MARK})


def _mend(field: str) -> str:
    close = difflib.get_close_matches(field, Settings.model_fields, n=3)
    return f"did you mean {', '.join(close)}?" if close else "see docs/configuration.md for the fields"


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); check BROWNOUT_CONFIG") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: is not valid TOML ({error}); mend that line") from error


def load(environ: dict[str, str] | None = None, cwd: Path | None = None) -> Settings:
    """Read file and environment and return validated settings.

    Raises:
        SettingsError: one line per bad value, with source, field, value and mend.
    """
    env = dict(os.environ) if environ is None else environ
    named = env.get("BROWNOUT_CONFIG")
    path = Path(named) if named else (cwd or Path.cwd()) / "brownout.toml"
    values: dict[str, Any] = _from_file(path) if named or path.is_file() else {}
    source = dict.fromkeys(values, str(path))
    for field in Settings.model_fields:
        name = f"BROWNOUT_{field.upper()}"
        if name in env:
            values[field] = env[name]
            source[field] = name
    known = {f"BROWNOUT_{field.upper()}" for field in Settings.model_fields}
    for name in sorted(env.keys() - known):
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
        if name.startswith("BROWNOUT_") and name not in _NO_FIELDS and close:
            raise SettingsError(f"environment: unknown variable {name}: did you mean {close[0]}?")
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            field = str(problem["loc"][0]) if problem["loc"] else "?"
            if problem["type"] == "extra_forbidden":
                lines.append(f"{source.get(field, path)}: unknown field {field!r}: {_mend(field)}")
            else:
                given = without_password(str(values.get(field))) if field == "store" else values.get(field)
                reason = problem["msg"]
                lines.append(f"{source.get(field, path)}: field {field!r} has value {given!r}: {reason}")
        raise SettingsError("\n".join(lines)) from error


@cache
def current() -> Settings:
    """Return the settings of this process, read once."""
    return load()
