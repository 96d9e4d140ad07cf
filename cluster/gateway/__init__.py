"""The gateway: an OpenAI-compatible front of the replicas, with the policies between.

It is a process of its own, outside Ray, so that it does not share Ray's failure domain.
"""
