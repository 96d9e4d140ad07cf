"""An experiment as it was asked for on a command line: fewer arms, or a resilient arm that lacks a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chaos.experiment import Experiment
from chaos.names import UnknownName, require
from cluster.public import POLICIES


def tailored(experiment: Experiment, *, arms: Sequence[str] = (), without: Sequence[str] = ()) -> Experiment:
    """Return ``experiment`` with only ``arms`` (all when empty, in the experiment's order) and with ``without``
    switched off in the arms that have both the fault and the policies.

    Raises:
        UnknownName: an arm or a policy that does not exist.
    """
    known = [arm.name for arm in experiment.arms]
    for name in arms:
        require("arm", name, known)
    for policy in without:
        require("policy", policy, POLICIES)
    chosen = [arm for arm in experiment.arms if not arms or arm.name in arms]
    lacking = [arm for arm in chosen if arm.role == "resilient"]
    if without and not lacking:
        raise UnknownName(
            f"--without {' '.join(without)} needs an arm with the fault and the policies; chosen are: "
            f"{', '.join(arm.name for arm in chosen)}"
        )
    off = tuple(dict.fromkeys(without))
    changed = tuple(replace(arm, without=(*arm.without, *off)) if arm in lacking else arm for arm in chosen)
    return replace(experiment, arms=changed)
