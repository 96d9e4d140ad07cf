"""The tables. Times are seconds since the epoch by the store's clock; digests are hexadecimal SHA-256.

Who changes a table here writes a migration too (``migrations/versions``); a test compares the two.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)

METADATA: Final = MetaData()

AUDIT: Final = Table(
    "audit",
    METADATA,
    Column("chain", String(64), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("kind", String(8), nullable=False),  # head, open, close
    Column("request_id", String(160), nullable=False),
    Column("body", Text, nullable=False),  # canonical JSON; the digest is over it
    PrimaryKeyConstraint("chain", "seq"),
)
Index("audit_by_request", AUDIT.c.request_id)

CLAIMS: Final = Table(
    "claims",
    METADATA,
    Column("scope", String(64), primary_key=True),  # digest of tenant, principal, method, path and key
    Column("tenant", String(128), nullable=False),
    Column("principal", String(128), nullable=False),
    Column("body_digest", String(64), nullable=False),
    Column("state", String(16), nullable=False),  # running, done, unknown
    Column("owner", String(64), nullable=False),  # the gateway process
    Column("fence", BigInteger, nullable=False),
    Column("lease_until", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("request_id", String(160), nullable=False),
    Column("status", Integer),
    Column("headers", Text),  # JSON
    Column("body", LargeBinary),
    Index("claims_by_expiry", "expires_at"),
)

TOOL_STEPS: Final = Table(
    "tool_steps",
    METADATA,
    Column("scope", String(64), nullable=False),  # of the claim, or of the request where there is none
    Column("step", String(128), nullable=False),
    Column("tool_key", String(128), nullable=False),  # the idempotency key that the tool was given
    Column("call_digest", String(64), nullable=False),
    Column("state", String(16), nullable=False),  # asked, done, refused, unknown
    Column("request_id", String(160), nullable=False),
    Column("asked_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("result", Text),  # JSON
    PrimaryKeyConstraint("scope", "step"),
    Index("tool_steps_by_expiry", "expires_at"),
)

JOBS: Final = Table(
    "jobs",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(128), nullable=False),
    Column("principal", String(128), nullable=False),
    Column("key_id", String(64), nullable=False),
    Column("service_class", String(128), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("work_tokens", Integer, nullable=False),
    Column("path", String(64), nullable=False),
    Column("request", LargeBinary, nullable=False),
    Column("request_id", String(160), nullable=False),
    Column("state", String(16), nullable=False),  # queued, running, done, failed, cancelled, expired
    Column("reason", Text, nullable=False, default=""),
    Column("attempts", Integer, nullable=False, default=0),
    Column("owner", String(64), nullable=False, default=""),
    Column("fence", BigInteger, nullable=False, default=0),
    Column("lease_until", Float, nullable=False, default=0.0),
    Column("not_before", Float, nullable=False, default=0.0),
    Column("cancel_asked", Boolean, nullable=False, default=False),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("ended_at", Float),
    Column("wait_until", Float, nullable=False),  # the longest wait: not begun by then, it expires
    Column("keep_until", Float, nullable=False),  # after that the record may be removed
    Column("status", Integer),
    Column("headers", Text),  # JSON
    Column("result", LargeBinary),
    Index("jobs_by_state", "state", "priority", "created_at"),
    Index("jobs_in_turn", "state", "tenant", "priority", "created_at"),
    Index("jobs_by_wait", "state", "wait_until"),
    Index("jobs_by_tenant", "tenant", "created_at"),
    Index("jobs_by_keeping", "keep_until"),
)

JOB_ROOMS: Final = Table(
    "job_rooms",
    METADATA,
    Column("tenant", String(128), primary_key=True),  # empty: all tenants together
    Column("jobs", Integer, nullable=False),  # that wait or are worked on
    Column("tokens", BigInteger, nullable=False),  # their work
    Column("served", BigInteger, nullable=False),  # work that was handed out, for turns
)

ANSWERS: Final = Table(
    "answers",
    METADATA,
    Column("key", String(64), primary_key=True),
    Column("tenant", String(128), nullable=False),
    Column("described", Text, nullable=False),  # canonical JSON of all that the key is a digest of
    Column("body", LargeBinary, nullable=False),
    Column("body_digest", String(64), nullable=False),
    Column("tokens", Integer, nullable=False),  # of work that a hit saves
    Column("saved_s", Float, nullable=False),  # what computing it took, in replica-seconds
    Column("stored_at", Float, nullable=False),
    Column("fresh_until", Float, nullable=False),
    Column("stale_until", Float, nullable=False),  # may be served until then if nothing better can be had
    Index("answers_by_tenant", "tenant", "stored_at"),
    Index("answers_by_expiry", "stale_until"),
)

QUOTA_WINDOWS: Final = Table(
    "quota_windows",
    METADATA,
    Column("tenant", String(128), nullable=False),
    Column("quota", String(32), nullable=False),
    Column("window_start", BigInteger, nullable=False),
    Column("leased", BigInteger, nullable=False),  # handed out to gateways in blocks
    PrimaryKeyConstraint("tenant", "quota", "window_start"),
)
