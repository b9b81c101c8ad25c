"""Finds the limit of a run, and the changes that raise its rate, with the gain of each.

    run as it is, stages alone ─▶ rates ─▶ limit ─▶ changes: predicted, then tried ─▶ findings ─▶ page, text, JSON

`diagnose.py` runs these steps: `observed_run.py` feeds a device for some seconds; `stages.py` measures each stage
alone, now and with a change, with `fetch_rate.py` for fetching and `sample.py` for everything that needs a small
dataset; `prediction.py` computes what the stages reach together (pure); `verdict.py` names the limit in a sentence;
`fixes.py` predicts the gain of each change, and `diagnose.py` tries the best. `findings.py` is the result.
"""

__all__ = ["diagnose", "fetch_rate", "findings", "fixes", "observed_run", "prediction", "sample", "stages", "verdict"]
