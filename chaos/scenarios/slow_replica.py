"""Slow replica: the link of one replica gets slow and irregular, and the replica is otherwise well."""

from __future__ import annotations

from chaos.experiment import Experiment, FaultPlan, Load, Objective, Phases

SLOW_REPLICA = Experiment(
    name="slow_replica",
    question=(
        "When everything that one of N replicas sends comes 0.6 s late, give or take 0.2 s, do calls get their first "
        "token as soon as without that, once the gateway has had three seconds to notice?"
    ),
    load=Load(
        share=0.6,
        of_replicas_lost=1,
        prompt_tokens=(30, 60),
        output_tokens=(10, 14),
        stream_share=0.8,
        client_deadline_s=10.0,
    ),
    faults=(FaultPlan("latency", "replica-*", settings={"latency_s": 0.6, "jitter_s": 0.2}),),
    objectives=(
        Objective("success_rate", 1.0),
        Objective("ttft_p95", 2.5, relative_to_control=True, from_s=3.0),
    ),
    counted="hold_window",
    minimum_counted=80,
    phases=Phases(warm_up_s=2.0, steady_s=4.0, hold_s=10.0, recovery_s=2.0),
)
