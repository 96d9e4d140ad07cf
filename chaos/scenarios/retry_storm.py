"""Retry storm: a short trigger, and retries that keep the service saturated when the trigger is long gone."""

from __future__ import annotations

from chaos.experiment import Arm, Experiment, FaultPlan, Load, Objective, Phases, Sign

RETRY_STORM = Experiment(
    name="retry_storm",
    question=(
        "When every replica answers three seconds late for five seconds under a high load, is goodput back within "
        "five seconds of the end of that, or do the retries keep it down?"
    ),
    load=Load(
        share=0.82,
        prompt_tokens=(30, 60),
        output_tokens=(24, 36),
        # Nothing is sent before the whole answer is there, so an attempt may be given up and made again at any time.
        stream_share=0.0,
        client_deadline_s=8.0,
    ),
    faults=(FaultPlan("latency", "replica-*", settings={"latency_s": 3.0}, every=True),),
    objectives=(
        Objective("time_to_recover", 5.0),
        Objective("goodput", 0.9, relative_to_control=True, counted="after_revert", from_s=5.0),
    ),
    counted="after_revert",
    minimum_counted=60,
    phases=Phases(warm_up_s=2.0, steady_s=3.0, hold_s=5.0, recovery_s=10.0),
    arms=(
        Arm("control", "resilient", fault=False),
        Arm("retry_only", "retry-only", fault=True),
        Arm("resilient", "resilient", fault=True),
    ),
    signs=(Sign("retry_rate", 0.5),),
)
