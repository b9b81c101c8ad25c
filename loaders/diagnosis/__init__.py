"""Finds the limit of a run, and the changes that raise its rate, with the gain of each.

    run as it is, stages alone ─▶ rates ─▶ limit ─▶ changes: predicted, then tried ─▶ findings ─▶ page, text, JSON

`diagnose.py` runs these steps, predicts the gain of each change, and tries the best: `observed_run.py` feeds a device
for some seconds; `stages.py` measures each stage alone, now and with a change, with `fetch_rate.py` for fetching and
`sample.py` for everything that needs a small dataset; `prediction.py` computes what the stages reach together (pure);
`verdict.py` names the limit in a sentence. `findings.py` is the result; `report.py` shows it as a text and a page.
"""
