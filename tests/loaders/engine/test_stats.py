"""Sums of the stages."""

from loaders.engine.stats import Stats


def test_work_and_waiting_are_summed_until_they_are_taken():
    stats = Stats()
    stats.add("decode", items=3, busy_s=0.5)
    stats.add("decode", items=1, get_wait_s=0.25)
    stats.add("plan", put_wait_s=2.0)
    decode = {"items": 4, "busy_s": 0.5, "get_wait_s": 0.25, "put_wait_s": 0.0}
    assert stats.snapshot() == {"decode": decode, "plan": {**dict.fromkeys(decode, 0), "put_wait_s": 2.0}}
    taken = stats.take()
    assert taken["decode"] == decode
    assert stats.snapshot() == {}
    stats.add("decode", **taken["decode"])
    assert stats.snapshot() == {"decode": decode}
