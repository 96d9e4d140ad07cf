"""Long context: a few long prompts among many short ones fill the cache until sequences are thrown out of the batch."""

from __future__ import annotations

from chaos.experiment import CallClass, Experiment, FaultPlan, Load, Objective, Phases, Sign

LONG_CONTEXT = Experiment(
    name="long_context",
    question=(
        "When long prompts press the cache until sequences are thrown out of the batch, do short calls keep the time "
        "to their first token and the flow of their tokens?"
    ),
    load=Load(
        # Little, so that what shows is the cache and not the processor: here a long prefill really takes a core.
        share=0.25,
        classes=(
            CallClass(
                "short",
                share=1.0,
                surge_share=0.0,
                priority="critical",
                tenant="chat",
                prompt_tokens=(30, 60),
                output_tokens=(20, 30),
                client_deadline_s=6.0,
            ),
            CallClass(
                "long",
                share=0.0,
                surge_share=1.0,
                priority="sheddable",
                tenant="documents",
                # Six of them are more than a cache of 12,288 tokens holds, and each grows by two blocks.
                prompt_tokens=(1800, 2000),
                output_tokens=(200, 260),
                client_deadline_s=15.0,
            ),
        ),
    ),
    faults=(FaultPlan("burst", "client", settings={"times": 1.45}),),
    objectives=(
        Objective("success_rate", 0.99, call_class="short"),
        # The allowance is one prefill of a long prompt, for which a short call may come to wait.
        Objective("ttft_p95", 3.0, relative_to_control=True, allowance_s=0.5, call_class="short"),
        Objective("itl_p99", 3.0, relative_to_control=True, allowance_s=0.5, call_class="short"),
    ),
    counted="hold_window",
    minimum_counted=40,
    phases=Phases(warm_up_s=2.0, steady_s=3.0, hold_s=10.0, recovery_s=2.0),
    signs=(Sign("preemptions", 1.0),),
)
