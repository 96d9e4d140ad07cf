"""The links service: one link for every incarnation of a replica that Ray Serve runs.

Ray Serve moves replicas: a new one has a new port, sometimes a new address. A link must not follow such a move:
Toxiproxy holds up the change of a link whose old upstream does not answer, and toxics put on one replica would
hit another. So each incarnation gets a new link on a new port, and the old one is removed in the background.

``serve_status`` and ``book`` are pure and decide; ``serve_client``, ``toxiproxy_client`` and ``controller`` talk
to Ray and to the link proxy; ``service`` tells the gateway. ``python -m cluster.links`` runs it.
"""
