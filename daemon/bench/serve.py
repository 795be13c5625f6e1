"""`ridealong bench serve`: tokens per second of our lane against `transformers`, on the same threads."""

from daemon.bench.plan import Plan, Say
from daemon.bench.report import Bar, Report, this_machine
from daemon.bench.sides import OURS, alternate, started_sides

THEIRS = "transformers"
LEAST_DECODE = {1: 1.2, 4: 3.0, 8: 3.0}
"""By sequences decoded together, how many times theirs ours must be."""
LEAST_PREFILL = 1.2


def run_serve(plan: Plan, say: Say) -> Report:
    """Decode of several sequences together, and prefill of one prompt."""
    machine = this_machine()
    least = {f"decode {slots}": bound for slots, bound in LEAST_DECODE.items()} | {"prefill": LEAST_PREFILL}
    kinds = {OURS: "lane", THEIRS: "generate"}
    with started_sides(kinds, dict.fromkeys(kinds, plan)) as sides:
        medians = alternate(list(sides.values()), list(least), rounds=plan.rounds, say=say)
        ready = sides[OURS].ready
    bars = tuple(
        Bar(
            f"prefill of {plan.sizes.prefill_tokens:,}" if what == "prefill" else f"{what} together",
            medians[OURS, what].tokens_per_second,
            medians[THEIRS, what].tokens_per_second,
            "tokens/s",
            at_least=bound,
        )
        for what, bound in least.items()
    )
    return Report("serve", machine, ready["model"], ready["repack"], plan.rounds, bars=bars)
