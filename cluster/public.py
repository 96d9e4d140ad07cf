"""Names that the world outside the cluster may rely on.

This is the only module of ``cluster`` that ``chaos`` may import: link names, ports, header, metric and
event names, and the shape of the file that describes a running local cluster. It needs nothing but the
standard library and the names of the policies, so that ``chaos`` installs without Ray, vLLM or a web framework.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from cluster.exported import Exported
from policies import ladder, profiles

__all__ = ("Exported",)
"""What is made elsewhere. Everything else here is public as well."""

# --- links -----------------------------------------------------------------------------------------------

LINK_CLIENT: Final = "client"
"""Between the load generator and the gateway."""
LINK_TOOL: Final = "tool"
"""Between the gateway and the JSON-RPC tool."""
LINK_STORE: Final = "store"
"""Between the gateway and PostgreSQL; there is none where the store is a file."""
REPLICA_LABEL_PREFIX: Final = "replica-"
"""A replica's *label* is ``replica-<slot>``; its *link* is ``replica-<slot>.<incarnation>``."""

SMALL_LABEL_PREFIX: Final = "small-"
"""Label of a replica of the smaller model; what looks for replicas does not see those."""
KIND_REPLICA: Final = "replica"
KIND_REPLICA_SMALL: Final = "replica_small"


def replica_label(link: str) -> str:
    """Return the label of a replica's link: ``replica-0.k3f9`` gives ``replica-0``."""
    return link.split(".", 1)[0]


# --- ports (defaults; cluster.settings says how to move them) --------------------------------------------

PORT_CLIENT: Final = 8080
"""The listening end of link ``client``: what users and load generators talk to."""
PORT_GATEWAY: Final = 8081
PORT_GATEWAY_ADMIN: Final = 8082
PORT_LINKS: Final = 8083
PORT_TOXIPROXY: Final = 8474
PORT_TOOL_LINK: Final = 8090
PORT_STORE_LINK: Final = 8091
PORT_REPLICA_LINKS: Final = 21000
"""First of the ports on which the links of replicas listen."""
REPLICA_LINK_PORTS: Final = 64
"""How many of them there are; one is reused only after its proxy is gone."""
PORT_RAY_GCS: Final = 6379
PORT_RAY_CLIENT: Final = 10001
PORT_RAY_DASHBOARD: Final = 8265
PORT_INGRESS: Final = 30000
"""First port of Ray Serve's direct ingress."""
PORT_PROMETHEUS: Final = 9090

# --- paths -----------------------------------------------------------------------------------------------

TOOL_PATH: Final = "/tool"
"""Where the tool answers behind its link: Ray Serve wants another route prefix for each application."""
SMALL_PATH: Final = "/small"
"""Where the replicas of the smaller model answer behind their links, before ``/v1``."""

# --- HTTP headers ----------------------------------------------------------------------------------------

HEADER_REQUEST_ID: Final = "x-request-id"
"""Sent by the client or made by the gateway; echoed; it names the call in every event."""
HEADER_DEADLINE: Final = "x-brownout-deadline-s"
"""Optional, client to gateway: seconds that the client will still wait; gateway to replica: those left by then."""
HEADER_REPLICA: Final = "x-brownout-replica"
"""The link of the replica that answered."""
HEADER_ATTEMPTS: Final = "x-brownout-attempts"
"""How many attempts the answer took; 1 means no retry."""
HEADER_PROFILE: Final = "x-brownout-profile"
HEADER_TOOL: Final = "x-brownout-tool"
"""What became of the tool call: ``ok``, ``deadline``, ``error``, ``unknown`` (it may have acted); ``skipped`` where the
ladder went without an optional one, ``breaker`` and ``busy`` where it was not asked because it has been failing or has
enough to do (absent when none was asked for). Of several calls each is named: ``get_price=ok, get_transfer=error``."""
HEADER_IDEMPOTENCY_KEY: Final = "idempotency-key"
"""Optional, client to gateway, and required where a tool is to act: names the request, so that sending it again does
nothing twice."""
HEADER_REPLAYED: Final = "x-brownout-replayed"
"""``true`` where the answer is the one that the same key got before."""
HEADER_SHOULD_RETRY: Final = "x-should-retry"
"""``false`` with an error for which a retry would only add load; ``true`` where it is safe and of use after the
time that ``retry-after`` names; absent where the gateway cannot know."""
HEADER_PRIORITY: Final = "x-brownout-priority"
"""Optional, client to gateway: ``critical_plus``, ``critical`` (the default), ``sheddable_plus``, ``sheddable``."""
HEADER_TENANT: Final = "x-brownout-tenant"
"""Optional, client to gateway: whose fair share the call takes."""
HEADER_CLASS: Final = "x-brownout-class"
"""Optional, client to gateway: the class of work, which decides how far down the ladder it may go."""
HEADER_CACHE: Final = "x-brownout-cache"
"""What the answer cache gave, for a call of a class that may use it: ``hit``, ``stale``, ``miss``, or ``bypass`` where
the request is one that is computed each time. With the first two ``age`` is the answer's age in seconds."""
HEADER_RUNG: Final = "x-brownout-rung"
"""The rung of the ladder at which the call was answered; ``full`` when nothing was taken away."""

RUNGS: Final = ladder.RUNGS
"""The rungs of the ladder, best first; the last is a refusal."""

# --- types of errors in the OpenAI error shape -----------------------------------------------------------

ERROR_UPSTREAM_LOST: Final = "upstream_lost"
"""A replica was lost; in a stream, after its first token."""
ERROR_OVERLOADED: Final = "overloaded"
"""Refused on purpose: the first token would be late."""
ERROR_NO_REPLICA: Final = "no_replica"
"""No replica is in rotation."""
ERROR_TIMEOUT: Final = "timeout"
"""A deadline or a time-out of the gateway ran out."""
ERROR_TOOL: Final = "tool_failed"
ERROR_TOOL_UNKNOWN: Final = "tool_outcome_unknown"
"""A tool was asked to act, and nobody can tell now whether it did; it is not asked again blindly."""
ERROR_NOT_RESUMABLE: Final = "not_resumable"
"""A stream was cut, and what it asks for is not proven to go on identically."""
ERROR_QUOTA: Final = "quota_exceeded"
"""The tenant's own share is used up (429); everybody else's causes are 503."""
ERROR_BREAKER: Final = "breaker_open"
ERROR_INVALID: Final = "invalid_request_error"
ERROR_AUTHENTICATION: Final = "authentication_error"
"""There is no key, or none that is valid (401)."""
ERROR_PERMISSION: Final = "permission_error"
"""The key is valid, but not for this (403)."""
ERROR_UNAVAILABLE: Final = "unavailable"
"""What no call is answered without (who asks, the record of it, its quota) could not be done (503)."""

# --- profiles and policies -------------------------------------------------------------------------------

POLICIES: Final = profiles.POLICIES
"""What the profile ``resilient`` is made of; each can be switched off by name (``--without``)."""
PROTECTS: Final = profiles.PROTECTS
"""Policy to one line: what it protects from."""
PROFILES: Final = tuple(profiles.PROFILES)
PROFILE_POLICIES: Final = {name: profiles.active_policies(name) for name in profiles.PROFILES}
"""Profile to what is on in it: the stages of the pipeline, outermost first, then what is part of a stage."""
PART_POLICIES: Final = tuple(profiles.INSIDE)
"""Policies that are no stage of the pipeline but part of one, or of the phase before it."""
OPTIONAL_POLICIES: Final = profiles.OPTIONAL
"""Policies that are in no profile and are switched on by name."""

# --- metrics of the gateway (Prometheus names) -----------------------------------------------------------

METRIC_CALLS: Final = "brownout_calls_total"
"""Counter by ``outcome``: ok, failed, refused, invalid, cancelled."""
METRIC_ATTEMPTS: Final = "brownout_attempts_total"
"""Counter by ``outcome``: ok, failed, cancelled."""
METRIC_RETRIES: Final = "brownout_retries_total"
METRIC_RESUMES: Final = "brownout_resumes_total"
"""Counter: answers that were cut and continued on another replica, each time it was done."""
METRIC_HEDGES: Final = "brownout_hedges_total"
"""Counter: second attempts that were sent beside a first one."""
METRIC_ATTEMPT_TOKENS: Final = "brownout_attempt_tokens_total"
"""Counter by ``attempt``: ``first``, ``again`` (retries, resumes, hedges); tokens of work, prompt and expected output.

Retry amplification is the sum over ``first``: in tokens of this counter, in attempts of the one above."""
METRIC_WASTED_TOKENS: Final = "brownout_wasted_tokens_total"
"""Counter by ``kind``: ``prefill``, ``decode``; tokens that were computed and had to be computed once more."""
METRIC_REFUSED: Final = "brownout_refused_total"
"""Counter by ``reason``: calls that were refused in the end, each once."""
METRIC_RUNGS: Final = "brownout_rungs_total"
"""Counter by ``rung`` of the ladder: calls that have reached the pipeline, ``refuse`` being the last rung."""
METRIC_LADDER_LEVEL: Final = "brownout_ladder_level"
"""Gauge: rungs that the ladder is down; 0 is full service."""
METRIC_QUEUE_DEPTH: Final = "brownout_queue_depth"
"""Gauge: calls that have arrived and have no first token yet."""
METRIC_IN_FLIGHT: Final = "brownout_in_flight"
"""Gauge: calls whose answer has not ended."""
METRIC_ACTIVE_TOKENS: Final = "brownout_active_tokens"
"""Gauge: tokens of work (prompt + output still expected) that are outstanding at the replicas."""
METRIC_QUEUED_CALLS: Final = "brownout_queued_calls"
"""Gauge by ``priority``: calls that wait for a permit."""
METRIC_QUEUED_TOKENS: Final = "brownout_queued_tokens"
"""Gauge: tokens of work (prompt + expected output) of the calls that wait for a permit."""
METRIC_PERMITS: Final = "brownout_permits_in_use"
"""Gauge by ``priority``: sequences that hold a permit."""
METRIC_LIMIT: Final = "brownout_permit_limit"
"""Gauge: sequences that may hold a permit at once, the sum of the replicas' limits; 0 where admission is off."""
METRIC_OFFERED: Final = "brownout_offered_work"
"""Gauge: replica-seconds of work that arrive per second, averaged over some seconds."""
METRIC_CAPACITY: Final = "brownout_service_capacity"
"""Gauge: replica-seconds per second that the replicas in rotation can do."""
METRIC_PREDICTED_TTFT: Final = "brownout_predicted_ttft_seconds"
"""Gauge: predicted time to first token of a call of 100 prompt tokens that arrived now."""
METRIC_HEADROOM: Final = "brownout_headroom_ratio"
"""Gauge: 1 - offered work / service capacity; negative means saturated."""
METRIC_JOBS_QUEUED: Final = "brownout_jobs_queued"
"""Gauge by ``class``: jobs that wait, in the store that all gateways share."""
METRIC_JOBS_RUNNING: Final = "brownout_jobs_running"
"""Gauge by ``class``: jobs that some gateway works on."""
METRIC_JOBS_OLDEST: Final = "brownout_jobs_oldest_wait_seconds"
"""Gauge: how long the oldest waiting job has waited."""
METRIC_JOBS: Final = "brownout_jobs_total"
"""Counter by ``outcome``: accepted, done, failed, cancelled, expired; again and later, for tries that ended nothing."""
METRIC_UNAUTHENTICATED: Final = "brownout_unauthenticated_total"
"""Counter by ``reason``: missing, malformed, unknown, wrong, expired, revoked, unavailable."""
METRIC_TENANTS_USABLE: Final = "brownout_tenants_usable"
"""Gauge: 1 while callers can be identified; 0 while the tenants file is invalid or gone, and nobody is let in."""
METRIC_QUOTA_LEASES: Final = "brownout_quota_leases_total"
"""Counter by ``quota`` (requests, tokens) and ``outcome`` (granted, empty, failed)."""
METRIC_LIVE_REPLICAS: Final = "brownout_live_replicas"
"""Gauge: replicas in rotation (known and not ejected)."""
METRIC_TTFT: Final = "brownout_ttft_seconds"
"""Histogram of the time to first token as the gateway sees it."""
METRIC_EJECTIONS: Final = "brownout_ejections_total"
METRIC_CACHE_LOOKUPS: Final = "brownout_cache_lookups_total"
"""Counter by ``outcome``: hit, stale, miss, bypass; calls of classes that may be answered from the answer cache."""
METRIC_CACHE_SAVED: Final = "brownout_cache_saved_seconds_total"
"""Counter: replica-seconds that answers from the cache did not cost again."""
METRIC_CACHE_LOOKUP: Final = "brownout_cache_lookup_seconds_total"
"""Counter: seconds that looking and verifying took."""
METRIC_CACHE_WRONG: Final = "brownout_cache_expected_wrong_seconds_total"
"""Counter: replica-seconds that wrong answers are expected to cost, by a bound on how many there are."""
METRIC_CACHE_VALUE: Final = "brownout_cache_value_seconds"
"""Gauge: the first of these three less the others; negative where the cache costs more than it saves."""
METRIC_CACHE_CROSS_TENANT: Final = "brownout_cache_cross_tenant_hits_total"
"""Counter: answers that were given to another tenant than theirs. It must be 0."""
METRIC_CACHE_PREVENTED: Final = "brownout_cache_wrong_hits_prevented_total"
"""Counter by ``reason``: kept answers that were found and not given, because something was not as it must be."""
METRIC_CACHE_LOST: Final = "brownout_cache_lost_total"
"""Counter: lookups that the store did not answer; each was a miss."""
METRIC_TOOL_CALLS: Final = "brownout_tool_calls_total"
"""Counter by ``outcome``: ok, deadline, error, skipped, breaker, cancelled."""

# vLLM's own, read from each replica
VLLM_RUNNING: Final = "vllm:num_requests_running"
VLLM_WAITING: Final = "vllm:num_requests_waiting"
VLLM_KV_USAGE: Final = "vllm:kv_cache_usage_perc"
VLLM_PREEMPTIONS: Final = "vllm:num_preemptions_total"

# --- settings that tests and the command line may need to name -------------------------------------------

MODEL_NAME: Final = "brownout-tiny"
SMALL_MODEL_NAME: Final = "brownout-tiny-small"
RUN_DIR_MARK: Final = ".brownout"
"""File that tells a run folder of ours from any other folder."""
RUN_MARK: Final = "BROWNOUT_RUN_MARK"
"""Environment variable that every process of a local cluster inherits, so that leftovers can be found."""


def default_run_dir() -> Path:
    """Return the folder in which a local cluster keeps its state and logs (``BROWNOUT_RUN_DIR`` moves it).

    It is short on purpose: Ray puts Unix sockets below it, whose paths may not exceed 107 bytes.
    """
    configured = os.environ.get("BROWNOUT_RUN_DIR")
    path = Path(configured) if configured else Path(tempfile.gettempdir()) / f"brownout-{os.getuid()}"
    return path.resolve()


class RunDirError(OSError):
    """A run folder that cannot be used; the text says why and what to do."""


def claim_run_dir(run_dir: Path) -> None:
    """Make the run folder, or see that it is ours: things in it are removed and writers to it are ended.

    Raises:
        RunDirError: it belongs to another user, or holds something else.
        OSError: it cannot be made.
    """
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if run_dir.stat().st_uid != os.getuid():
        raise RunDirError(
            f"{run_dir} belongs to another user; name a folder of your own with BROWNOUT_RUN_DIR"
        )
    mark = run_dir / RUN_DIR_MARK
    if mark.exists():
        return
    others = sorted(path.name for path in run_dir.iterdir() if path.name != RUN_DIR_MARK)
    if others:
        raise RunDirError(
            f"{run_dir} holds something else ({', '.join(others[:3])}); name an empty or new folder with "
            f"BROWNOUT_RUN_DIR, or remove it"
        )
    mark.touch()


GATEWAY_PROCESS: Final = "gateway"
"""Name of the gateway's process in the state of a local cluster, and of its service in ``compose``."""
STORE_FILE: Final = "store.db"
"""In the run folder: the file of the default store."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process that ``brownout up`` started: enough to find it again and never hit a stranger."""

    name: str
    pid: int
    created_at: float
    """Start time as ``psutil.Process.create_time`` gives it, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Where a running cluster listens. ``local`` writes it to ``<run dir>/state.json``."""

    substrate: str
    run_mark: str
    base_url: str
    """OpenAI-compatible root behind link ``client``, without ``/v1``."""
    gateway_url: str
    """The gateway itself, past the link."""
    admin_url: str
    links_url: str
    toxiproxy_url: str
    model: str
    replicas: int
    pace: str
    versions: dict[str, str] = field(default_factory=dict)
    processes: tuple[ProcessRecord, ...] = ()
    logs: str = ""
    small_replicas: int = 0
    small_model: str = ""
    """The name of the smaller model; empty where none is deployed."""

    @staticmethod
    def path(run_dir: Path | None = None) -> Path:
        """Return the path of the state file."""
        return (run_dir or default_run_dir()) / "state.json"

    @classmethod
    def load(cls, run_dir: Path | None = None) -> ClusterState | None:
        """Read the state file; None when there is none, or when it is none of ours or was cut short."""
        try:
            raw: dict[str, Any] = json.loads(cls.path(run_dir).read_text())
            raw["processes"] = tuple(ProcessRecord(**record) for record in raw.get("processes", ()))
            return cls(**raw)
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, AttributeError):
            return None

    def save(self, run_dir: Path | None = None) -> None:
        """Write the state file in one step, so that a reader never sees half of it."""
        path = self.path(run_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(asdict(self), indent=1))
        scratch.replace(path)
