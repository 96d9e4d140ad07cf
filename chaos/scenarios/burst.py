"""Burst: three times as much arrives as the replicas can do; what matters must not feel it."""

from __future__ import annotations

from chaos.experiment import CallClass, Experiment, FaultPlan, Load, Objective, Phases, Sign

PROMPT_TOKENS, OUTPUT_TOKENS = (30, 60), (30, 50)
"""The same in both classes, so that a capacity in calls holds for every mix of them."""

BURST = Experiment(
    name="burst",
    question=(
        "When arrivals jump to three times the capacity, are critical calls still answered, with their first token in "
        "time, and does the service still do nine tenths of what it can?"
    ),
    load=Load(
        share=0.6,
        client_deadline_s=6.0,
        classes=(
            CallClass(
                "critical",
                share=0.5,
                prompt_tokens=PROMPT_TOKENS,
                output_tokens=OUTPUT_TOKENS,
                surge_share=0.1,
                priority="critical",
                tenant="fraud",
                stream_share=1.0,
                client_deadline_s=6.0,
            ),
            CallClass(
                "sheddable",
                share=0.5,
                prompt_tokens=PROMPT_TOKENS,
                output_tokens=OUTPUT_TOKENS,
                surge_share=0.9,
                priority="sheddable",
                tenant="summaries",
                stream_share=1.0,
                client_deadline_s=6.0,
            ),
        ),
    ),
    # 0.6 of the capacity times five is three times the capacity.
    faults=(FaultPlan("burst", "client", settings={"times": 5.0}),),
    objectives=(
        Objective("success_rate", 0.99, call_class="critical"),
        Objective("ttft_p95", 2.0, call_class="critical"),
        Objective("ttft_p95", 3.0, call_class="sheddable"),
        Objective("goodput", 0.9, relative_to_capacity=True),
    ),
    counted="hold_window",
    minimum_counted=40,
    phases=Phases(warm_up_s=2.0, steady_s=3.0, hold_s=8.0, recovery_s=2.0),
    signs=(Sign("queue_depth", 24.0),),
)
