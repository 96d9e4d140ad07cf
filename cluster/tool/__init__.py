"""The tool: a JSON-RPC 2.0 server that stands for a chain or a market-data provider.

It has a read method, a method with a side effect, a ledger in which every effect can be counted, and
faults that a test can switch on. Nothing in it needs Ray; :mod:`cluster.tool.deployment` is the thin wrapper.
"""
