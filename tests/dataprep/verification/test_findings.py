from dataprep.verification.findings import KINDS, UNPROVED, WARNINGS, Finding, Findings


def test_the_first_findings_are_listed_and_all_are_counted():
    findings = Findings(max_listed=3)
    for number in range(10):
        findings.add("record", f"shard {number}", "other")
    assert [finding.where for finding in findings.listed] == ["shard 0", "shard 1", "shard 2"]
    assert findings.counts == {"record": 10}


def test_the_order_is_that_of_the_parts_however_they_come():
    merged = Findings(max_listed=4)
    for position in (5, 3, 9, 1, 7):
        part = Findings()
        part.add("size", f"shard {position}", "a")
        part.add("digest", f"shard {position}", "b")
        merged.extend(part, position)
    assert merged.listed == [
        Finding("size", "shard 1", "a"),
        Finding("digest", "shard 1", "b"),
        Finding("size", "shard 3", "a"),
        Finding("digest", "shard 3", "b"),
    ]
    assert merged.counts == {"size": 5, "digest": 5}


def test_every_kind_is_documented():
    import dataprep.verification.findings as module

    documented = [line.split()[0] for line in (module.__doc__ or "").splitlines() if line and line[0] != " "]
    assert set(KINDS) <= set(documented)
    assert set(KINDS) >= WARNINGS | UNPROVED
