"""Worker loss: one of N replicas is killed while it holds streams and a call that awaits its first token."""

from __future__ import annotations

from chaos.experiment import Experiment, FaultPlan, Load, Objective, Phases

WORKER_LOSS = Experiment(
    name="worker_loss",
    question=(
        "When one of N replicas is killed under a load that N-1 can carry, is every call answered that it held (streams"
        " in full) or that arrives in the ten seconds after, and does the first token still come in time?"
    ),
    load=Load(
        share=0.65,
        of_replicas_lost=1,
        # Short, so that about twenty calls a second are offered: a dead replica is out of the list within a second
        # or two, and enough calls must meet it until then for a difference between the arms to be significant.
        prompt_tokens=(30, 60),
        output_tokens=(10, 14),
        stream_share=0.8,
        client_deadline_s=10.0,
    ),
    faults=(FaultPlan("kill_replica", "replica-*", when={"streaming": 3, "awaiting": 1}),),
    objectives=(
        Objective("success_rate", 1.0),
        Objective("ttft_p95", 3.0, relative_to_control=True),
    ),
    counted="loss_window",
    minimum_counted=100,
    phases=Phases(warm_up_s=2.0, steady_s=3.0, hold_s=10.0, recovery_s=3.0),
    calibrate_loss=True,
)
