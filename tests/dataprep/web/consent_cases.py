"""Cases made from the specifications: what is published, and what is due of an image at `https://site.test/a/b.jpg`.

A verdict is `no`, `yes`, `conditions`, or `-` where nothing is said. Each table has the form of one specification; a
case's last value is its verdict, in front of it stands what is published.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

SITE = "https://site.test"
USAGE = [  # values of Content-Usage: aipref-vocab, sections 5 and 6; RFC 9651 for what is a dictionary
    ("train-ai=n", "no"),
    ("train-ai=y", "yes"),
    ("train-ai = n", "conditions"),
    ("train-ai=n, search=y", "no"),
    ("search=y, train-ai=n", "no"),
    ("search=y,train-ai=n", "no"),
    ("search=y", "-"),
    ("search=n", "-"),
    ("train-genai=n", "no"),
    ("train-ai=y, train-genai=n", "no"),
    ("train-genai=y", "yes"),
    ("train-ai=n, train-genai=y", "no"),
    ("all=n", "no"),
    ("all=y", "yes"),
    ("all=n, train-ai=y", "yes"),
    ("all=y, train-ai=n", "no"),
    ("bots=n", "no"),
    ("bots=n, train-ai=y", "yes"),
    ("bots=y", "yes"),
    ("train-ai=n;q=1", "no"),
    ('train-ai=n;exceptions="research"', "no"),
    ("train-ai=maybe", "-"),
    ('train-ai="n"', "-"),
    ("train-ai=?0", "-"),
    ("train-ai", "-"),
    ("train-ai=", "-"),
    ("TRAIN-AI=N", "no"),
    ("train-ai=y, train-ai=n", "no"),
    ("train-ai=n, train-ai=y", "no"),
    ("=n", "conditions"),
    ("train ai=n", "conditions"),
    ("train-ai=n,", "no"),
    (",train-ai=n", "no"),
    ("x-own=1, train-ai=n", "no"),
    ("tr\u0430in-ai=n", "conditions"),  # a Cyrillic letter
    ("\u200btrain-ai=n", "conditions"),
    ("{train-ai: n}", "conditions"),
    ("", "-"),
]
SIGNALS = [  # values of Content-Signal: contentsignals.org
    ("ai-train=no", "no"),
    ("ai-train=yes", "yes"),
    ("search=yes,ai-train=no", "no"),
    ("search=yes, ai-train=no", "no"),
    ("search=yes, ai-input=yes, ai-train=no", "no"),
    ("search=yes, ai-input=no, ai-train=yes", "yes"),
    ("ai-train=no, search=yes", "no"),
    ("ai-input=no", "-"),
    ("search=no", "-"),
    ("search=yes", "-"),
    ("AI-Train=No", "no"),
    ("ai-train=no,use=reference", "no"),
    ("ai-train=maybe", "-"),
    ("ai-train", "-"),
    ("ai-train=no ai-input=yes", "-"),
    ("ai-train: no", "conditions"),
    ("", "-"),
]
ROBOTS = [  # whole files: RFC 9309 with aipref-attach, contentsignals.org and RSL
    ("", "-"),
    ("User-agent: *\nDisallow: /", "robots"),
    ("User-agent: *\nAllow: /", "-"),
    ("User-agent: *\nDisallow: /a/", "robots"),
    ("User-agent: *\nDisallow: /c/", "-"),
    ("User-agent: dataprep\nDisallow: /\n\nUser-agent: *\nAllow: /", "robots"),
    ("User-agent: GPTBot\nDisallow: /", "strict"),
    ("User-agent: CCBot\nUser-agent: GPTBot\nDisallow: /", "strict"),
    ("User-agent: img2dataset\nDisallow: /a/", "strict"),
    ("User-agent: img2dataset\nDisallow: /c/", "-"),
    ("User-agent: Googlebot\nDisallow: /", "-"),
    ("User-agent: Google-Extended\nDisallow: /\nAllow: /a/", "-"),
    ("User-agent: ClaudeBot\nDisallow: /a/b.jpg", "strict"),
    ("User-agent: CCBot\nDisallow:", "-"),
    ("User-agent: Applebot-Extended\nDisallow: /*.jpg$", "strict"),
    ("User-agent: *\nContent-Usage: / train-ai=n\nAllow: /", "no"),
    ("User-agent: *\nContent-Usage: train-ai=n", "no"),
    ("User-agent: *\nContent-Usage:/ train-ai=n", "no"),
    ("User-agent: *\nContent-Usage: /\ttrain-ai=n", "no"),
    ("user-agent: *\ncontent-usage: / train-ai=n", "no"),
    ("User-agent: *\nContent-Usage: / train-ai=n # for all", "no"),
    ("User-agent: *\nContent-Usage: /a/ train-ai=n", "no"),
    ("User-agent: *\nContent-Usage: /c/ train-ai=n", "-"),
    ("User-agent: *\nContent-Usage: / train-ai=n\nContent-Usage: /a/ train-ai=y", "yes"),
    ("User-agent: *\nContent-Usage: /a/ train-ai=n\nContent-Usage: / train-ai=y", "no"),
    ("User-agent: *\nContent-Usage: /a/ train-ai=y\nContent-Usage: /a/ train-ai=n", "no"),
    ("User-agent: *\nContent-Usage: /*.jpg train-ai=n\nContent-Usage: / train-ai=y", "no"),
    ("User-agent: *\nContent-Usage: /a/b.jpg$ train-ai=n", "no"),
    ("User-agent: *\nContent-Usage: /a/b.jp$ train-ai=n", "-"),
    ("User-agent: *\nContent-Usage: /%61/ train-ai=n", "no"),
    ("User-agent: *\nContent-Usage: / train-ai=y", "yes"),
    ("User-agent: *\nContent-Usage: / search=y", "-"),
    ("User-agent: dataprep\nContent-Usage: / train-ai=n\n\nUser-agent: *\nAllow: /", "no"),
    ("User-agent: dataprep\nAllow: /\n\nUser-agent: *\nContent-Usage: / train-ai=n", "-"),
    ("User-agent: ExampleBot\nContent-Usage: / train-ai=n", "-"),
    ("User-agent: ExampleBot\nAllow: /\n\nUser-agent: *\nContent-Usage: / train-ai=n", "no"),
    ("Content-Usage: / train-ai=n", "-"),
    ("User-agent: a\nUser-agent: *\nContent-Usage: / train-ai=n\nUser-agent: b\nAllow: /", "no"),
    ("User-agent: *\nContent-Signal: search=yes,ai-train=no\nAllow: /", "no"),
    ("User-agent: *\nContent-signal: search=yes,ai-train=no", "no"),
    ("User-agent: *\nContent-Signal: /a/ ai-train=no", "no"),
    ("User-agent: *\nContent-Signal: /c/ ai-train=no", "-"),
    ("User-agent: *\nContent-Signal: ai-train=yes", "yes"),
    ("# As a condition of accessing this website\nUser-Agent: *\nContent-Signal: ai-train=no\nDisallow:", "no"),
    ("User-agent: Googlebot\nContent-Signal: ai-train=no", "-"),
    ("User-agent: Googlebot\nContent-Signal: ai-train=no\n\nUser-agent: *\nContent-Signal: ai-train=yes", "yes"),
    ("User-agent: *\nContent-Signal: ai-train=yes\nContent-Usage: / train-ai=n", "no"),
    ("User-agent: *\nContent-Signal: ai-train=no\nContent-Usage: / train-ai=y", "no"),
    ("User-agent: *\nContent-Signal: ai-train=yes\nContent-Signal: ai-train=no", "no"),
    ("User-agent: *\nContent-Signal: ai-train=no\nDisallow: /", "robots"),
    ("\ufeffUser-agent: *\r\nContent-Signal: ai-train=no\r\n", "no"),
    ("User-agent: *\rContent-Signal: ai-train=no", "no"),
    ("User-agent: *\n\n\nContent-Signal: ai-train=no", "no"),
    ("User-agent: *\nContent-Signals: ai-train=no", "no"),
    ("<html>Content-Signal: ai-train=no</html>", "-"),
]
RESERVED = [  # tdmrep.json: TDMRep, section 6.1; the first rule that matches decides
    ('[{"location": "/", "tdm-reservation": 1}]', "no"),
    ('[{"location": "/", "tdm-reservation": 0}]', "yes"),
    ('[{"location": "/a/", "tdm-reservation": 1}]', "no"),
    ('[{"location": "/c/", "tdm-reservation": 1}]', "-"),
    ('[{"location": "/a/", "tdm-reservation": 0}, {"location": "/", "tdm-reservation": 1}]', "yes"),
    ('[{"location": "/", "tdm-reservation": 1}, {"location": "/a/", "tdm-reservation": 0}]', "no"),
    ('[{"location": "/a/*.jpg", "tdm-reservation": 1}]', "no"),
    ('[{"location": "/a/*.png", "tdm-reservation": 1}]', "-"),
    ('[{"location": "*.jpg$", "tdm-reservation": 1}]', "no"),
    ('[{"location": "*", "tdm-reservation": 1}]', "no"),
    ('[{"location": "/*", "tdm-reservation": 1, "tdm-policy": "https://site.test/policy.json"}]', "no"),
    ('[{"location": "/A/", "tdm-reservation": 1}]', "-"),
    ('[{"location": "a/", "tdm-reservation": 1}]', "no"),
    ('[{"location": "/", "tdm-reservation": "1"}]', "no"),
    ('[{"location": "/", "tdm-reservation": 2}]', "conditions"),
    ('[{"location": "/"}]', "conditions"),
    ('[{"location": "/\\ud800", "tdm-reservation": 1}]', "conditions"),
    ("[]", "-"),
    ("{}", "-"),
    ("", "conditions"),
    ("not json", "conditions"),
    ("[1]", "conditions"),
    ("<!doctype html><title>Not found</title>", "-"),
    ("[" * 100_000, "conditions"),
    ('[{"location": "/", "tdm-reservation": 1}', "conditions"),
]
AI_TXT = [  # Spawning's ai.txt
    ("User-Agent: *\nDisallow: /", "no"),
    ("User-Agent: *\nDisallow: *", "no"),
    ("User-Agent: *\nDisallow: *.jpg", "no"),
    ("User-Agent: *\nDisallow: *.txt\nDisallow: *.mp3\nAllow: *.jpg", "-"),
    ("User-Agent: *\nDisallow: *.jpg\nAllow: *.txt", "no"),
    ("User-Agent: *\nAllow: /", "-"),
    ("# Spawning AI\n# Prevent datasets from using the following file types\nUser-Agent: *\nDisallow: *.jpg\n", "no"),
    ("User-Agent: otherbot\nDisallow: /", "-"),
    ("User-Agent: dataprep\nDisallow: /a/", "no"),
    ("# A site for agents\n\nSummary: photographs of birds", "-"),
    ("<html><body>Not found</body></html>", "-"),
    ("", "-"),
]
LICENCES = [  # the contents of an RSL file; RSL 1.0
    ("<prohibits type='usage'>ai-train</prohibits>", "no"),
    ("<prohibits type='usage'>ai-all</prohibits>", "no"),
    ("<prohibits type='usage'>all</prohibits>", "no"),
    ("<prohibits type='usage'>search ai-train</prohibits>", "no"),
    ("<prohibits type='usage'>search,ai-train</prohibits>", "no"),
    ("<prohibits type='usage'>ai-input</prohibits>", "yes"),
    ("<prohibits>ai-train</prohibits>", "no"),
    ("<permits type='usage'>search</permits>", "no"),
    ("<permits type='usage'>all</permits>", "yes"),
    ("<permits type='usage'>ai-all</permits>", "yes"),
    ("<permits type='usage'>ai-train</permits>", "yes"),
    ("<permits type='usage'>search ai-index ai-train</permits>", "yes"),
    ("<permits type='usage'>ai-input</permits>", "no"),
    ("<permits type='usage'>all</permits><prohibits type='usage'>ai-train</prohibits>", "no"),
    ("<permits type='usage'>ai-all</permits><payment type='free'/>", "yes"),
    ("<permits type='usage'>ai-all</permits><payment type='attribution'/>", "yes"),
    ("<payment type='purchase'><amount currency='USD'>1</amount></payment>", "no"),
    ("<permits type='usage'>ai-train</permits><payment type='training'/>", "no"),
    ("<permits type='usage'>ai-train</permits><payment type='subscription'/>", "no"),
    ("<payment type='crawl'><amount currency='USD'>0.015</amount></payment>", "no"),
    ("<payment type='contribution'/>", "no"),
    ("<payment/>", "yes"),
    ("<permits type='user'>non-commercial</permits>", "conditions"),
    ("<permits type='geo'>US</permits>", "conditions"),
    ("<permits type='usage'>ai-train</permits><prohibits type='user'>commercial</prohibits>", "conditions"),
    ("<permits type='user'>education</permits><prohibits type='usage'>ai-train</prohibits>", "no"),
    ("", "yes"),
    ("<terms>https://site.test/terms</terms>", "yes"),
]
RSL = [  # whole RSL files
    ("<rsl xmlns='https://rslstandard.org/rsl'><content url='/'/></rsl>", "conditions"),
    ("<rsl xmlns='https://rslstandard.org/rsl'></rsl>", "-"),
    (
        "<rsl xmlns='https://rslstandard.org/rsl'><content url='/c/'><license><prohibits>all</prohibits></license>"
        "</content></rsl>",
        "-",
    ),
    (
        "<rsl xmlns='https://rslstandard.org/rsl'><content url='https://site.test/a/*'><license><prohibits>all"
        "</prohibits></license></content></rsl>",
        "no",
    ),
    (
        "<rsl xmlns='https://rslstandard.org/rsl'><content url='/'><license><prohibits>all</prohibits></license>"
        "</content><content url='/a/'><license><permits>all</permits></license></content></rsl>",
        "yes",
    ),
    (
        "<rsl xmlns='https://rslstandard.org/rsl'><content url='/'><license><payment type='purchase'/></license>"
        "<license><permits>all</permits><payment type='attribution'/></license></content></rsl>",
        "yes",
    ),
    ("<rsl><content url='/'><license><prohibits>ai-train</prohibits></license></content></rsl>", "no"),
    ("<!DOCTYPE rsl [<!ENTITY a 'aaaa'>]><rsl/>", "conditions"),
    ("<rss/>", "conditions"),
    ("not XML", "conditions"),
    ("<rsl xmlns='https://rslstandard.org/rsl'><content", "conditions"),
    ("<html>Not found</html>", "conditions"),
]
HEADERS = [  # headers of the answer
    ({}, "-"),
    ({"X-Robots-Tag": "noai"}, "robots"),
    ({"X-Robots-Tag": "noimageai"}, "robots"),
    ({"X-Robots-Tag": "noai, noimageai"}, "robots"),
    ({"X-Robots-Tag": "noindex"}, "robots"),
    ({"X-Robots-Tag": "dataprep: noai"}, "robots"),
    ({"X-Robots-Tag": "otherbot: noai"}, "-"),
    ({"X-Robots-Tag": "max-image-preview: large"}, "-"),
    ({"x-robots-tag": "NOAI"}, "robots"),
    ({"TDM-Reservation": "1"}, "no"),
    ({"tdm-reservation": " 1 "}, "no"),
    ({"TDM-Reservation": "0"}, "yes"),
    ({"TDM-Reservation": "2"}, "-"),
    ({"TDM-Reservation": "1", "TDM-Policy": "https://site.test/policy.json"}, "no"),
    ({"TDM-Policy": "https://site.test/policy.json"}, "-"),
    ({"Content-Usage": "train-ai=n"}, "no"),
    ({"content-usage": "train-ai=n"}, "no"),
    ({"Content-Usage": "train-ai=y"}, "yes"),
    ({"Content-Usage": "train-ai=y", "TDM-Reservation": "1"}, "no"),
    ({"Content-Usage": "train-ai=y", "X-Robots-Tag": "noai"}, "robots"),
    ({"Link": '<https://site.test/rsl.xml>; rel="license"; type="application/rsl+xml"'}, "conditions"),
    ({"Link": "<https://site.test/rsl.xml>; rel=license; type=application/rsl+xml"}, "conditions"),
    ({"Link": '</a.css>; rel=preload, </rsl.xml>; type="application/rsl+xml"; REL="license"'}, "conditions"),
    ({"Link": '<https://site.test/licence.html>; rel="license"'}, "-"),
    ({"Link": '<https://site.test/a.css>; rel="preload"'}, "-"),
]
PLUS = "http://ns.useplus.org/ldf/vocab/"
MINING = [  # values of plus:DataMining: PLUS LDF
    (f"{PLUS}DMI-UNSPECIFIED", "-"),
    (f"{PLUS}DMI-ALLOWED", "yes"),
    (f"{PLUS}DMI-PROHIBITED", "no"),
    (f"{PLUS}DMI-PROHIBITED-AIMLTRAINING", "no"),
    (f"{PLUS}DMI-PROHIBITED-GENAIMLTRAINING", "no"),
    (f"{PLUS}DMI-PROHIBITED-EXCEPTSEARCHENGINEINDEXING", "no"),
    (f"{PLUS}DMI-PROHIBITED-SEECONSTRAINT", "no"),
    (f"{PLUS}DMI-PROHIBITED-SEEEMBEDDEDRIGHTSEXPR", "no"),
    (f"{PLUS}DMI-PROHIBITED-SEELINKEDRIGHTSEXPR", "no"),
    ("DMI-PROHIBITED-AIMLTRAINING", "no"),
    (" DMI-PROHIBITED ", "no"),
    ("Prohibited for AI/ML training", "no"),
    ("", "-"),
    ("whatever", "conditions"),
]
RIGHTS = [  # dc:rights and xmpRights:UsageTerms
    ("(c) 2026 A. Photographer", "-"),
    ("All rights reserved.", "-"),
    ("No AI training.", "no"),
    ("NoAI", "no"),
    ("This image may not be used to train artificial intelligence.", "no"),
    ("Use for machine learning is prohibited", "no"),
    ("Rights for text and data mining are reserved.", "no"),
    ("Text and data mining within the meaning of Article 4 is reserved", "no"),
    ("Not for use in AI datasets", "no"),
    ("Creative Commons Attribution 4.0", "-"),
    ("AI training is allowed", "-"),
    ("Made without filters. Air show 2026", "-"),
    ("Reserved seats, Main Street", "-"),
    ("A painting of rain: no entry", "-"),
]
USES = [  # entries of the assertions of C2PA and CAWG, without their prefix
    ({"ai_training": "notAllowed"}, "no"),
    ({"ai_training": "allowed"}, "yes"),
    ({"ai_training": "constrained"}, "no"),
    ({"ai_training": {"use": "constrained", "constraint_info": "research alone"}}, "conditions"),
    ({"ai_generative_training": "notAllowed"}, "no"),
    ({"ai_generative_training": "allowed", "ai_training": "notAllowed"}, "no"),
    ({"data_mining": "notAllowed"}, "no"),
    ({"ai_inference": "notAllowed"}, "-"),
    ({"ai_inference": "allowed", "ai_training": "allowed"}, "yes"),
    ({"ai_training": "unknown"}, "-"),
]


@dataclass(frozen=True)
class Case:
    due: str
    """`no`, `yes`, `conditions` or `-`; `robots` is a no that each policy takes, `strict` one for the strictest."""
    robots: str = ""
    files: dict[str, str] = field(default_factory=dict)
    """Other files of the site by their path."""
    headers: dict[str, str] = field(default_factory=dict)
    xmp: str = ""
    """Properties in the picture's XMP."""
    uses: dict[str, str | dict[str, str]] = field(default_factory=dict)


def cases() -> Iterator[Case]:
    """All cases."""
    yield from (Case(due, robots=f"User-agent: *\nContent-Usage: / {value}") for value, due in USAGE)
    yield from (Case(due, headers={"Content-Usage": value}) for value, due in USAGE)
    yield from (Case(due, robots=f"User-agent: *\nContent-Signal: {value}") for value, due in SIGNALS)
    yield from (Case(due, robots=text) for text, due in ROBOTS)
    yield from (Case(due, files={"/.well-known/tdmrep.json": text}) for text, due in RESERVED)
    yield from (Case(due, files={"/ai.txt": text}) for text, due in AI_TXT)
    for licence, due in LICENCES:
        yield rsl(f"<content url='/'><license>{licence}</license></content>", due)
    yield from (Case(due, "License: /rsl.xml\nUser-agent: *\nAllow: /", {"/rsl.xml": text}) for text, due in RSL)
    yield from (Case(due, headers=each) for each, due in HEADERS)
    for value, due in MINING:
        yield Case(due, xmp=f"<rdf:Description plus:DataMining='{value}'/>")
        yield Case(due, xmp=f"<rdf:Description><plus:DataMining>{value}</plus:DataMining></rdf:Description>")
        yield Case(due, xmp=f"<rdf:Description><plus:DataMining rdf:resource='{value}'/></rdf:Description>")
    for text, due in RIGHTS:
        lines = f"<rdf:Alt><rdf:li xml:lang='x-default'>{text}</rdf:li></rdf:Alt>"
        yield Case(due, xmp=f"<rdf:Description><dc:rights>{lines}</dc:rights></rdf:Description>")
        yield Case(due, xmp=f"<rdf:Description><xmpRights:UsageTerms>{lines}</xmpRights:UsageTerms></rdf:Description>")
    yield Case("no", xmp="<rdf:Description xmlns:t='http://www.w3.org/ns/tdmrep/' t:reservation='1'/>")
    yield from (
        Case(due, uses={f"{prefix}.{name}": use for name, use in uses.items()})
        for uses, due in USES
        for prefix in ("c2pa", "cawg")
    )


def rsl(content: str, due: str) -> Case:
    text = f"<?xml version='1.0' encoding='UTF-8'?><rsl xmlns='https://rslstandard.org/rsl'>{content}</rsl>"
    return Case(due, robots="License: https://site.test/rsl.xml\nUser-agent: *\nAllow: /", files={"/rsl.xml": text})
