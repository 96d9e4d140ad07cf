"""The schema's history, for Alembic. :mod:`~cluster.gateway.store.opening` brings a store up to the last of them."""
