"""The embedded link proxy: Toxiproxy's HTTP API and toxics as an asyncio server.

It exists so that the local cluster can slow, cut and reset its links without a binary to download. What a client
of the API and a TCP peer see is what the Go server shows, checked against a recording of it; where this one
differs on purpose, the module concerned says so (``connection``, ``counters``, ``toxics/reset_peer``,
``toxics/slicer``). ``python -m cluster.linkproxy --host H --port P`` runs it.
"""
