"""More summaries than the replicas can write: they are accepted for later and written when chat leaves room."""

from __future__ import annotations

from chaos.experiment import CallClass, Experiment, FaultPlan, Load, Objective, Phases, Sign

PROMPT_TOKENS, OUTPUT_TOKENS = (30, 60), (20, 30)
"""The same in both classes, so that a capacity in calls holds for every mix of them."""

DEFERRED_BURST = Experiment(
    name="deferred_burst",
    question=(
        "When summaries come at twice the capacity, does chat not feel it, and is every summary that was accepted for "
        "later written, none lost, without chat feeling that either?"
    ),
    load=Load(
        share=0.5,
        classes=(
            CallClass(
                "chat",
                share=0.7,
                surge_share=0.0,
                prompt_tokens=PROMPT_TOKENS,
                output_tokens=OUTPUT_TOKENS,
                priority="critical",
                client_deadline_s=6.0,
            ),
            CallClass(
                "summary",
                share=0.3,
                surge_share=1.0,
                prompt_tokens=PROMPT_TOKENS,
                output_tokens=OUTPUT_TOKENS,
                stream_share=0.0,
                priority="sheddable_plus",
                service_class="summary",
                client_deadline_s=6.0,
                result_within_s=45.0,
            ),
        ),
    ),
    # 0.5 of the capacity times four is twice the capacity.
    faults=(FaultPlan("burst", "client", settings={"times": 4.0}),),
    objectives=(
        Objective("success_rate", 0.99, call_class="chat"),
        Objective("ttft_p95", 10.0, relative_to_control=True, call_class="chat"),
        Objective("success_rate", 0.99, call_class="summary"),
        # While what was put off is worked off; the allowance is for what the burst itself has left behind.
        Objective(
            "ttft_p95",
            3.0,
            relative_to_control=True,
            allowance_s=0.5,
            call_class="chat",
            counted="after_revert",
        ),
    ),
    counted="hold_window",
    minimum_counted=30,
    phases=Phases(warm_up_s=2.0, steady_s=2.0, hold_s=4.0, recovery_s=5.0),
    signs=(Sign("queue_depth", 12.0),),
)
