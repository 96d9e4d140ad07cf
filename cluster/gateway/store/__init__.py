"""The SQL store behind the gateway: what must never be lost is in it, and nothing of a request is done without it.

One schema (:mod:`~cluster.gateway.store.tables`) and one way to use it (:class:`~cluster.gateway.store.store.Store`)
on SQLite, the embedded default, and on PostgreSQL.
"""
