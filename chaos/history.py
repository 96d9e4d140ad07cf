"""The history of a run: append-only JSONL, the only thing that is ever judged.

Every line is one record with ``type`` and ``arm`` (empty outside the arms). Times ending in ``_at`` are
seconds since the epoch, as ``time.time()`` gives them; ``*_s`` are durations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

Outcome = Literal["ok", "failed", "refused", "late", "degraded", "deferred", "deferred_done"]
"""``deferred``: accepted for later, and no result by the client's deadline; ``deferred_done``: with its result."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The first line: what was asked, and on what it ran."""

    type: ClassVar[str] = "run"
    experiment: dict[str, Any]
    substrate: str
    seed: int
    without: list[str]
    versions: dict[str, str]
    machine: dict[str, Any]
    settings: dict[str, Any]
    started_at: float
    arm: str = ""


@dataclass(frozen=True, slots=True)
class CalibrationRecord:
    """Capacity measured in this run with ``replicas`` live replicas."""

    type: ClassVar[str] = "calibration"
    replicas: int
    calls_per_s: float
    tokens_per_s: float
    duration_s: float
    calls: int
    arm: str = ""
    measured_at: float = 0.0
    """When; 0 in a history that does not say so."""
    shared_from: str = ""
    """The run that measured it, on the very same cluster, when that is not this one."""


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """A phase of an arm begins (phases: warm_up, steady, fault, hold, revert, recovery, end)."""

    type: ClassVar[str] = "phase"
    arm: str
    phase: str
    at: float


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call as the client saw it; written when it has ended, whatever its end.

    ``offset_s`` is the scheduled arrival relative to the arm's start and is the same in every arm of a
    seed; ``scheduled_at`` = arm start + offset. Latencies count from ``scheduled_at``. ``token_at`` holds the
    arrival of every streamed chunk that carried text.
    """

    type: ClassVar[str] = "call"
    arm: str
    n: int
    request_id: str
    offset_s: float
    scheduled_at: float
    sent_at: float
    ended_at: float
    stream: bool
    prompt_sha: str
    prompt_tokens: int
    max_tokens: int
    outcome: Outcome
    status: int
    """HTTP status; 0 when no response came."""
    error_type: str = ""
    error: str = ""
    headers_at: float | None = None
    first_token_at: float | None = None
    token_at: list[float] = field(default_factory=list)
    output_tokens: int = 0
    """As the usage of the answer says; 0 when unknown."""
    finish_reason: str = ""
    done: bool = False
    """Whether ``[DONE]`` was seen (streams only)."""
    text_sha: str = ""
    replica: str = ""
    attempts: int = 0
    tool: str = ""
    call_class: str = ""
    """The class of the load's mix; empty where the load is of one kind."""
    surge: bool = False
    """Whether a burst added it: such calls are sent only in arms with the fault."""
    rung: str = ""
    """The rung of the ladder at which it was answered, as the gateway said; empty when it said nothing."""
    tries: list[dict[str, Any]] = field(default_factory=list)
    """Each time that a client who repeats sent it: ``request_id``, ``sent_at``, ``ended_at``, ``status``,
    ``error_type``. Empty for the others."""
    api_key: str = ""
    """The name of the key that it was sent with."""
    tenant: str = ""
    effect: str = ""
    """What the tool's ledger calls the sender of the effect that was asked for; empty when none was."""
    cache: str = ""
    """What the gateway said of its answer cache."""
    job: str = ""
    """Where the job is that it became, as a path."""
    accepted_at: float | None = None
    effects: int | None = None
    """How often the ledger has it. Never written: it is counted when a history is judged; None where nobody looked."""


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """One line of the tool's ledger that was written while an arm ran; ``seq`` is its number there."""

    type: ClassVar[str] = "effect"
    arm: str
    seq: int
    key: str
    sender: str
    at: float


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What became of a job, looked at when an arm had ended; ``n`` is the call that it was accepted for."""

    type: ClassVar[str] = "job"
    arm: str
    n: int
    job: str
    state: str
    at: float
    reason: str = ""
    text_sha: str = ""
    """Of its result; the call's own has what the client read before."""


@dataclass(frozen=True, slots=True)
class SignalRecord:
    """One sample of the signals; a missing signal is None, never 0."""

    type: ClassVar[str] = "signal"
    arm: str
    at: float
    queue_depth: float | None = None
    ttft_p95_s: float | None = None
    active_tokens: float | None = None
    cache_occupancy: float | None = None
    reject_rate: float | None = None
    retry_rate: float | None = None
    headroom: float | None = None
    live_replicas: float | None = None
    preemptions: float | None = None
    """Sequences thrown out of a batch for want of cache, by all replicas since they started."""


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """One step in a fault's life (steps: scheduled, condition, injected, verified, reverted, recovered)."""

    type: ClassVar[str] = "fault"
    arm: str
    kind: str
    target: str
    """What was hit: the link's name, e.g. ``replica-1.x7d2``, or ``tool``."""
    step: str
    at: float
    detail: dict[str, Any] = field(default_factory=dict)
    """For ``injected``: ``awaiting`` and ``streaming``, lists of the request ids that the target held."""


@dataclass(frozen=True, slots=True)
class GatewayEventRecord:
    """One event of the gateway, as it was (fields beside ``event`` and ``at`` in ``detail``)."""

    type: ClassVar[str] = "gateway_event"
    arm: str
    event: str
    at: float
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """Something that the runner found true or false at a known moment, e.g. ``replica_returned``.

    ``ok`` is None when it could not be found out: that is inconclusive.
    """

    type: ClassVar[str] = "check"
    arm: str
    name: str
    ok: bool | None
    at: float
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndRecord:
    """The last line. A history without it was cut off; it is judged as inconclusive."""

    type: ClassVar[str] = "end"
    at: float
    reason: str = "completed"
    arm: str = ""


Record = (
    RunRecord
    | CalibrationRecord
    | PhaseRecord
    | CallRecord
    | SignalRecord
    | FaultRecord
    | GatewayEventRecord
    | CheckRecord
    | EffectRecord
    | JobRecord
    | EndRecord
)
_TYPES: dict[str, type[Any]] = {
    kind.type: kind
    for kind in (
        RunRecord,
        CalibrationRecord,
        PhaseRecord,
        CallRecord,
        SignalRecord,
        FaultRecord,
        GatewayEventRecord,
        CheckRecord,
        EffectRecord,
        JobRecord,
        EndRecord,
    )
}


class HistoryError(ValueError):
    """A history that cannot be read; names the file, the line and what is wrong with it."""


class HistoryWriter:
    """Appends records; each is on its way to the disk before :meth:`write` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("x")

    def write(self, record: Record) -> None:
        """Append one record."""
        self._file.write(json.dumps({"type": record.type, **asdict(record)}, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; safe twice."""
        self._file.close()


def read(path: Path) -> Iterator[Record]:
    """Yield the records of a history; a last line that was cut off by a crash is left out.

    Raises:
        HistoryError: a line in the middle is not a record.
    """
    lines = path.read_text(errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            raw = json.loads(line)
            kind = _TYPES[raw.pop("type")]
            known = {f.name for f in fields(kind)}
            yield kind(**{key: value for key, value in raw.items() if key in known})
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines):
                return
            raise HistoryError(f"{path}:{number}: not a history record ({error})") from error
