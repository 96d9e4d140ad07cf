"""Frozen replica: the engine of one replica stops while its HTTP server and its health check stay green."""

from __future__ import annotations

from chaos.experiment import Experiment, FaultPlan, Load, Objective, Phases

FROZEN_REPLICA = Experiment(
    name="frozen_replica",
    question=(
        "When the engine of one of N replicas freezes behind a green health check, is the replica out of rotation "
        "within two seconds, and is every call answered that it held or that arrives while it is frozen?"
    ),
    load=Load(
        share=0.6,
        of_replicas_lost=1,
        prompt_tokens=(30, 60),
        output_tokens=(10, 14),
        stream_share=0.8,
        # What awaits the frozen engine waits as long as it is frozen: longer than a client would.
        client_deadline_s=5.0,
    ),
    faults=(FaultPlan("freeze_replica", "replica-*", when={"streaming": 2}),),
    objectives=(
        Objective("success_rate", 1.0),
        # What the frozen replica holds cannot be faster than the detection; nor can it be slower by more than that.
        Objective("ttft_p95", 3.0, relative_to_control=True, allowance_s=2.0),
        Objective("ttft_p95", 3.0, relative_to_control=True, from_s=3.0),
        Objective("time_to_detect", 2.0),
    ),
    counted="held_and_hold",
    minimum_counted=60,
    phases=Phases(warm_up_s=2.0, steady_s=3.0, hold_s=8.0, recovery_s=2.0),
)
