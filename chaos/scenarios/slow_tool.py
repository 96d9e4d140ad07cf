"""Slow tool: the tool's answers take four seconds; calls for which it is optional must not wait for them."""

from __future__ import annotations

from chaos.experiment import Experiment, FaultPlan, Load, Objective, Phases

SLOW_TOOL = Experiment(
    name="slow_tool",
    question=(
        "When the tool takes four seconds to answer, are calls that can do without it still all answered, at most "
        "the tool's deadline of one second later than without the fault?"
    ),
    load=Load(
        share=0.35,
        of_replicas_lost=0,
        prompt_tokens=(30, 60),
        output_tokens=(10, 14),
        stream_share=0.8,
        tool=True,
        client_deadline_s=10.0,
    ),
    faults=(FaultPlan("latency", "tool", settings={"latency_s": 4.0}),),
    objectives=(
        Objective("success_rate", 1.0),
        Objective("e2e_p95", 1.5, relative_to_control=True, allowance_s=1.0),
    ),
    counted="hold_window",
    minimum_counted=60,
    phases=Phases(warm_up_s=3.0, steady_s=5.0, hold_s=10.0, recovery_s=5.0),
)
