"""What limits a run, and which change raises its rate by how much; docs/bottleneck.md has the method.

    run as it is, stages alone ─▶ rates ─▶ limit ─▶ changes: predicted, then tried ─▶ findings ─▶ page, text, JSON

`observed_run.py` watches a run for some seconds; `stages.py` measures each stage alone, now and with a change;
`prediction.py` computes what the stages reach together (pure); `fixes.py` predicts what each change would bring, and
`trials.py` tries the best. `monitor.py` takes the same measures in a training loop.
"""

__all__ = [
    "ahead",
    "comparison",
    "devices",
    "diagnose",
    "feed",
    "fetch_rate",
    "findings",
    "fixes",
    "full_cache",
    "monitor",
    "observed_run",
    "options",
    "prediction",
    "prediction_errors",
    "rehearsal",
    "sample",
    "slow_link",
    "stage_rates",
    "stages",
    "transforms",
    "trials",
    "verdict",
]
