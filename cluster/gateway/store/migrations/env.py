"""What Alembic runs a migration in: the transaction of whoever opened the store."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
