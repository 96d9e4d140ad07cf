"""All tables, as they are at first."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "answers",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=128), nullable=False),
        sa.Column("described", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("body_digest", sa.String(length=64), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("saved_s", sa.Float(), nullable=False),
        sa.Column("stored_at", sa.Float(), nullable=False),
        sa.Column("fresh_until", sa.Float(), nullable=False),
        sa.Column("stale_until", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("answers_by_expiry", "answers", ["stale_until"], unique=False)
    op.create_index("answers_by_tenant", "answers", ["tenant", "stored_at"], unique=False)
    op.create_table(
        "audit",
        sa.Column("chain", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("previous", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("request_id", sa.String(length=160), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("chain", "seq"),
    )
    op.create_index("audit_by_request", "audit", ["request_id"], unique=False)
    op.create_table(
        "claims",
        sa.Column("scope", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=128), nullable=False),
        sa.Column("principal", sa.String(length=128), nullable=False),
        sa.Column("body_digest", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("request_id", sa.String(length=160), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", sa.Text(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("scope"),
    )
    op.create_index("claims_by_expiry", "claims", ["expires_at"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=128), nullable=False),
        sa.Column("principal", sa.String(length=128), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("service_class", sa.String(length=128), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("work_tokens", sa.Integer(), nullable=False),
        sa.Column("path", sa.String(length=64), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("request_id", sa.String(length=160), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.Float(), nullable=False),
        sa.Column("not_before", sa.Float(), nullable=False),
        sa.Column("cancel_asked", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("wait_until", sa.Float(), nullable=False),
        sa.Column("keep_until", sa.Float(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", sa.Text(), nullable=True),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("jobs_by_keeping", "jobs", ["keep_until"], unique=False)
    op.create_index("jobs_by_wait", "jobs", ["state", "wait_until"], unique=False)
    op.create_index("jobs_in_turn", "jobs", ["state", "tenant", "priority", "created_at"], unique=False)
    op.create_index("jobs_by_state", "jobs", ["state", "priority", "created_at"], unique=False)
    op.create_index("jobs_by_tenant", "jobs", ["tenant", "created_at"], unique=False)
    op.create_table(
        "job_rooms",
        sa.Column("tenant", sa.String(length=128), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("served", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant"),
    )
    op.create_table(
        "quota_windows",
        sa.Column("tenant", sa.String(length=128), nullable=False),
        sa.Column("quota", sa.String(length=32), nullable=False),
        sa.Column("window_start", sa.BigInteger(), nullable=False),
        sa.Column("leased", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "quota", "window_start"),
    )
    op.create_table(
        "tool_steps",
        sa.Column("scope", sa.String(length=64), nullable=False),
        sa.Column("step", sa.String(length=128), nullable=False),
        sa.Column("tool_key", sa.String(length=128), nullable=False),
        sa.Column("call_digest", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("request_id", sa.String(length=160), nullable=False),
        sa.Column("asked_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("scope", "step"),
    )
    op.create_index("tool_steps_by_expiry", "tool_steps", ["expires_at"], unique=False)
