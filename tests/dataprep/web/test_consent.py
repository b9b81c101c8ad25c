"""What sites, answers and files say about training, against the specifications' words."""

import contextlib
import functools
import gc
import io
import json
import tracemalloc
import zlib
from datetime import UTC, datetime, timedelta

import c2pa
import PIL.Image
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict
from PIL.PngImagePlugin import PngInfo
from protego import Protego
from yarl import URL

from dataprep.errors import FormatError
from dataprep.web.consent import (
    MAX_PACKET_BYTES,
    MAX_ROBOTS_BYTES,
    MAX_RULES,
    MAX_WILDCARDS,
    SIGNALS,
    Rules,
    Site,
    headers,
    in_file,
    licences_of,
    metadata_of,
    reservations_of,
    rules_of,
    xmp,
)
from dataprep.web.requests import Consent, Failed, Status
from tests.dataprep.web.consent_cases import Case, cases
from tests.support.web_pages import DOMAIN


def allowed(rules: Rules, url: URL) -> None:
    Site(rules).check(url, Consent.ROBOTS)


WORDS = "User-agent Disallow Allow Crawl-delay Request-rate Sitemap Host * / $ 1/5 1e999 0600-0845 %zz".split()
WORDS += [" ", ":", "\n", ": ", "http://[", "9" * 30, "dataprep", "#", "\u2028"]
IMAGE = URL("http://host.images.test/a/b.jpg?c=1")


def forbidden(text: str, url: URL = IMAGE, agent: str = "dataprep") -> bool:
    try:
        allowed(rules_of(agent, 200, text.encode("utf-8", "surrogatepass")), url)
    except Failed as failure:
        return failure.status is Status.ROBOTS
    return False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        ("User-agent: *\nDisallow:\n", False),
        ("User-agent: *\nDisallow: /\n", True),
        ("User-agent: *\nDisallow: /a/\n", True),
        ("User-agent: *\nDisallow: /b/\n", False),
        ("User-agent: *\nDisallow: /a/\nAllow: /a/b\n", False),
        ("User-agent: *\nDisallow: /*.jpg$\n", False),
        ("User-agent: *\nDisallow: /*.jpg\n", True),
        ("User-agent: otherbot\nDisallow: /\n", False),
        ("User-agent: DataPrep\nDisallow: /\n\nUser-agent: *\nAllow: /\n", True),
        ("User-agent: *\nDisallow: /\n\nUser-agent: dataprep\nAllow: /\n", False),
        ("User-agent: dataprep/0.2.0\nDisallow: /\n\nUser-agent: *\nAllow: /\n", True),
        ("User-agent: otherbot/1.0\nDisallow: /\n", False),
        ("\ufeffUser-agent: *\r\nDisallow: /\r\n", True),
        ("<!DOCTYPE html><title>Not here</title>", False),
        ("User-agent: *\nDisallow: /" + "*a" * 900 + "b$\n", False),  # patterns with many stars cost no time
    ],
)
def test_rules_say_what_the_standard_says(text, expected):
    assert forbidden(text) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [(204, False), (404, False), (403, False), (410, False), (429, True), (500, True), (503, True)],
)
def test_a_missing_robots_txt_allows_all_and_a_failing_one_nothing(code, expected):
    if expected:
        with pytest.raises(Failed, match=f"robots.txt answered {code}") as caught:
            rules_of("dataprep", code)
        assert (caught.value.status, caught.value.http_code) == (Status.ROBOTS_UNAVAILABLE, code)
    else:
        allowed(rules_of("dataprep", code), IMAGE)


@pytest.mark.parametrize(("said", "delay_s"), [("2.5", 2.5), ("9999", 30.0), ("-1", 0.0), ("soon", 0.0), ("nan", 0.0)])
def test_a_crawl_delay_is_bounded(said, delay_s):
    assert rules_of("dataprep", 200, f"User-agent: *\nCrawl-delay: {said}\n".encode()).crawl_delay_s == delay_s


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], None),
        (["all"], None),
        (["nofollow, noarchive"], None),
        (["noai"], "noai"),
        (["noai, noimageai"], "noai"),
        (["NoImageAI"], "noimageai"),
        (["nofollow", "max-snippet: 20, noindex"], "noindex"),
        (["none"], "none"),
        (["unavailable_after: 25 Jun 2010 15:00:00 PST, noimageindex"], "noimageindex"),
        (["otherbot: noindex, noai"], None),
        (["otherbot: noindex", "noai"], "noai"),
        (["dataprep: noindex"], "noindex"),
        (["otherbot: noai, DataPrep: nofollow, noimageai"], "noimageai"),
        (["noindexing, xnoai"], None),
    ],
)
def test_an_x_robots_tag_for_all_or_for_this_robot_counts(lines, expected):
    tags = CIMultiDict([("x-robots-tag", line) for line in lines])
    assert next((each.text for each in headers(tags, "dataprep", "u")), None) == expected


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=60))
def test_any_bytes_are_parsed_as_rules(words):
    forbidden("User-agent: *\n" + "".join(words))
    assert 0 <= rules_of("dataprep", 200, "".join(words).encode("utf-8", "surrogatepass")).crawl_delay_s <= 30


AGENTS = ["dataprep", "DataPrep", "data", "d", "datapreparer", "our-bot", "our", "bot", "*", "d*", "*ap*", "**", ""]
FIELDS = ["User-agent", "user-agent", "Useragent", "User agent", "Disallow", "disalow", "Allow", "Crawl-delay", "x-own"]
FIELDS += ["Sitemap", "Host", "Request-rate", "Visit time", "crawl delay", "User", ""]
VALUES = ["/", "/a", "/a/", "/a/b.jpg", "/*.jpg$", "/a/*b", "/b$", "/a/index.html", "*", "/%61/b", "/a/b.jpg?c=1", "$"]
VALUES += ["", "1", "2.5", "nan", "http://host.images.test/a", "/a # all", "http:x", "1/5", "0600-0845"]
LINES = st.one_of(
    st.builds("User-agent{}{}".format, st.sampled_from([":", ": ", " ", " : "]), st.sampled_from(AGENTS)),
    st.builds("{}{}{}".format, st.sampled_from(["Disallow", "Allow"]), st.just(": "), st.sampled_from(VALUES)),
    st.builds(
        "{}{}{}".format,
        st.sampled_from(FIELDS),
        st.sampled_from([":", ": ", " ", "  ", " :", "", "\t"]),
        st.sampled_from([*VALUES, *AGENTS]),
    ),
    st.sampled_from(["", "# nothing", "  ", "<html>", "User agent dataprep", "user  agent: dataprep"]),
)
PATHS = ["/", "/a", "/a/", "/a/b.jpg", "/a/b.jpg?c=1", "/b", "/c/d.png", "/a/index.html", "/A", "/robots.txt", "/$"]


@given(st.lists(LINES, max_size=25), st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from(["dataprep", "our-bot"]))
@example(["User-agent: d", "Allow: /", "User-agent: *", "Disallow: /"], "\n", "dataprep")
@example(["User-agent: dataprep", "Sitemap: x", "User-agent: other", "Disallow: /"], "\n", "dataprep")
def test_picking_out_the_group_changes_no_verdict(lines, end, agent):
    text = end.join(lines)
    whole, ours = Protego.parse(text), rules_of(agent, 200, text.encode())
    for path in PATHS:
        url = URL(f"http://host.images.test{path}", encoded=True)
        with contextlib.suppress(Failed):
            allowed(ours, url)
            assert whole.can_fetch(str(url), agent), path
            continue
        assert not whole.can_fetch(str(url), agent), path
    assert ours.crawl_delay_s == min(whole.crawl_delay(agent) or 0.0, 30.0)


BOMBS = {
    "agents": "".join(f"User-agent:x{number:x}\n" for number in range(2_000)) + "Allow:/\n" * 1_500,
    "our agents": "".join(f"User-agent:{'dataprep'[: 1 + number % 8]}\n" for number in range(3_000))
    + "Allow:/\n" * 8_000,
    "groups": "User-agent:d\nAllow:/\n" * 9_000,
    "rules": "User-agent:*\n" + "".join(f"Allow:/{number:x}\n" for number in range(9_999)),
    "escapes": "User-agent:*\n" + "".join(f"Allow:/{number:x}%41\n" for number in range(9_999)),
    "wildcards": "User-agent:*\n" + "".join(f"Allow:/*{number:x}\n" for number in range(1_999)),
    "anchors": "User-agent:*\n" + "".join(f"Allow:/{number:x}$\n" for number in range(1_999)),
    "one rule": "User-agent:*\nAllow:/" + "%41" * 100_000,
    "sitemaps": "User-agent:*\n" + "".join(f"Sitemap:{number:x}\n" for number in range(20_000)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name not in ("escapes", "wildcards"))) for name in BOMBS]
)
def test_memory_that_rules_take_grows_with_the_text_and_is_weighed(name):
    body = BOMBS[name].encode()
    assert len(body) <= MAX_ROBOTS_BYTES
    rules_of("dataprep", 200, body)  # what the first call imports is not of the rules
    gc.collect()
    tracemalloc.start()
    try:
        rules = rules_of("dataprep", 200, body)
        with contextlib.suppress(Failed):
            allowed(rules, IMAGE)
        gc.collect()
        held_bytes, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes <= rules.weight_bytes + 10_000
    assert most_bytes <= 32 << 20


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ("Disallow: /x\n" * (MAX_RULES + 1), "robots.txt has 10,001 rules; at most 10,000 are followed"),
        ("Allow: /**\n" * MAX_WILDCARDS, "robots.txt has 4,000 wildcards; at most 2,000 are followed"),
    ],
)
def test_a_site_with_more_rules_than_are_followed_is_left_alone(rules, reason):
    with pytest.raises(Failed) as caught:
        allowed(rules_of("dataprep", 200, f"User-agent: *\n{rules}".encode()), IMAGE)
    assert (caught.value.status, caught.value.reason) == (Status.ROBOTS, reason)
    assert not forbidden(f"User-agent: other\n{rules}")


def test_wildcards_are_compared_with_a_url_only_where_that_is_quick():
    text = "User-agent: *\n" + "".join(f"Disallow: /{'a' * number}*b\n" for number in range(400))
    assert not forbidden(text, URL("http://host.images.test/" + "a" * 400))
    with pytest.raises(Failed, match="400 wildcards, too many for so long a URL"):
        allowed(rules_of("dataprep", 200, text.encode()), URL("http://host.images.test/" + "a" * 4_000))


PROPERTIES = (
    "<x:xmpmeta xmlns:x='adobe:ns:meta/'><rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#' "
    "xmlns:plus='http://ns.useplus.org/ldf/xmp/1.0/' xmlns:dc='http://purl.org/dc/elements/1.1/' "
    "xmlns:xmpRights='http://ns.adobe.com/xap/1.0/rights/'>{}</rdf:RDF></x:xmpmeta>"
)


def picture(fmt: str = "JPEG", packet: bytes = b"") -> bytes:
    stream, more = io.BytesIO(), {}
    if packet:
        chunk = PngInfo()
        chunk.add_itxt("XML:com.adobe.xmp", packet.decode(), zip=True)
        more = {"PNG": {"pnginfo": chunk}, "TIFF": {"tiffinfo": {700: packet}}}.get(fmt, {"xmp": packet})
    PIL.Image.new("RGB", (16, 16), "teal").save(stream, fmt, **more)
    return stream.getvalue()


@functools.cache
def signer() -> c2pa.Signer:
    """Signs for an organisation that nobody trusts."""
    name = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Nobody"), x509.NameAttribute(NameOID.COMMON_NAME, "x")]
    )
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    begin = datetime.now(UTC) - timedelta(days=1)
    chain = b""
    for is_root, key in ((False, keys[0]), (True, keys[1])):
        unused = [False] * 4
        use = x509.KeyUsage(not is_root, *unused, is_root, is_root, False, False)
        made = x509.CertificateBuilder(name, name, key.public_key(), 1 + is_root, begin, begin + timedelta(days=9))
        made = made.add_extension(x509.BasicConstraints(is_root, None), critical=True).add_extension(use, critical=True)
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        made = made.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[1].public_key()), critical=False
        )
        if not is_root:
            made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), critical=False)
        chain += made.sign(keys[1], hashes.SHA256()).public_bytes(Encoding.PEM)
    key = keys[0].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return c2pa.Signer.from_info(c2pa.C2paSignerInfo(alg=b"es256", sign_cert=chain, private_key=key, ta_url=None))


def signed(uses: dict[str, str | dict[str, str]], fmt: str = "JPEG") -> bytes:
    """A picture whose C2PA manifest, as its own library writes it, has entries on training."""
    source = "http://cv.iptc.org/newscodes/digitalsourcetype/digitalCapture"
    created = {"actions": [{"action": "c2pa.created", "digitalSourceType": source}]}
    label = f"{next(iter(uses)).partition('.')[0]}.training-mining"
    entries = {name: use if isinstance(use, dict) else {"use": use} for name, use in uses.items()}
    assertions = [
        {"label": "c2pa.actions", "data": created},
        {"label": label, "data": {"entries": entries}},
    ]
    manifest = {"claim_generator_info": [{"name": "tests", "version": "1"}], "assertions": assertions}
    stream = io.BytesIO()
    c2pa.Builder(json.dumps(manifest)).sign(signer(), f"image/{fmt.lower()}", io.BytesIO(picture(fmt)), stream)
    return stream.getvalue()


@functools.cache
def bodies() -> list[tuple[Case, bytes]]:
    return [(case, body_of(case)) for case in cases()]


def body_of(case: Case) -> bytes:
    return signed(case.uses) if case.uses else picture(packet=PROPERTIES.format(case.xmp).encode() if case.xmp else b"")


@pytest.mark.parametrize("policy", Consent)
def test_each_case_of_the_specifications_ends_as_it_is_due(web, fetch, policy):
    """More than 250 sites, each with one case; what refuses is named."""
    corpus = bodies()
    assert len(corpus) >= 250
    for number, (case, body) in enumerate(corpus):
        host = f"case{number}.{DOMAIN}"
        here = web.url("", host)
        web.pages[host, "/a/b.jpg"] = body, [f"{name}: {value}" for name, value in case.headers.items()]
        for path, text in {"/robots.txt": case.robots, **case.files}.items():
            web.pages[host, path] = text.replace("https://site.test", here).encode(), ()
    found = fetch([web.url("/a/b.jpg", f"case{number}.{DOMAIN}") for number in range(len(corpus))], consent=policy)
    refusing = {
        Consent.ROBOTS: {"robots"},
        Consent.PUBLISHED: {"robots", "no"},
        Consent.STRICT: {"robots", "no", "strict", "conditions"},
    }[policy]
    wrong = [
        (case, outcome.reason)
        for (case, _), outcome in zip(corpus, found, strict=True)
        if (outcome.status is not Status.SUCCESS) is not (case.due in refusing)
    ]
    assert not wrong
    for outcome in found:
        assert (outcome.evidence is None) is (outcome.status is Status.SUCCESS)
        if said := outcome.evidence:
            assert said.signal in SIGNALS
            assert said.text
            assert said.url.startswith("http://case")


@functools.cache
def signed_no(fmt: str) -> bytes:
    return signed({"c2pa.ai_training": "notAllowed"}, fmt)


def said_by(data: bytes) -> list[tuple[str, str]]:
    found = metadata_of(data)
    return [(each.signal, each.says) for each in in_file(data, found, "u")] if found else []


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "AVIF"])
def test_metadata_are_found_in_each_format_that_may_carry_them(fmt):
    packet = PROPERTIES.format("<rdf:Description plus:DataMining='DMI-PROHIBITED'/>").encode()
    assert said_by(picture(fmt)) == []
    if fmt != "GIF":  # Pillow writes none there
        assert said_by(picture(fmt, packet)) == [("PLUS", "no")]
    assert said_by(signed_no(fmt)) == [("C2PA", "no")]


@pytest.mark.parametrize(
    ("packet", "due"),
    [
        ("<!DOCTYPE x [<!ENTITY a 'DataMining'>]><x>&a;</x>", [("PLUS", "conditions")]),
        ("<x plus:DataMining='DMI-PROHIBITED'", [("PLUS", "conditions")]),
        ("<x>" + "DataMining " * 200_000 + "</x>", [("PLUS", "conditions")]),
        ("no XMP, but a text with rights", []),
        ("<x>" * 100_000, []),
    ],
)
def test_xmp_that_is_not_read_is_a_condition_where_it_may_say_something(packet, due):
    assert [(each.signal, each.says) for each in xmp(packet.encode(), "u")] == due
    assert [(each.signal, each.says) for each in xmp(b"\xff\xfe" + packet.encode("utf-16-le"), "u")] == due


@given(st.binary(max_size=300), st.integers(0, 2_000), st.sampled_from(["JPEG", "PNG", "WEBP", "TIFF", "AVIF"]))
def test_a_damaged_picture_says_nothing_or_what_it_can(noise, at, fmt):
    data = signed_no(fmt)
    for damaged in (data[:at] + noise + data[at + len(noise) :], data[: at + 12], data[:12] + noise):
        assert all(signal in SIGNALS for signal, _ in said_by(damaged))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_licence_or_a_list_of_reservations_or_neither(data):
    for read in (licences_of, reservations_of):
        with contextlib.suppress(FormatError):
            read(data)


def test_the_strictest_decides_and_the_evidence_names_those_that_allow_it(web, fetch):
    host = f"both.{DOMAIN}"
    web.pages[host, "/robots.txt"] = b"User-agent: *\nContent-Usage: / train-ai=y\n", ()
    web.pages[host, "/a.jpg"] = picture(), ("TDM-Reservation: 1",)
    (outcome,) = fetch([web.url("/a.jpg", host)], consent=Consent.PUBLISHED)
    assert (outcome.status, outcome.evidence.despite) == (Status.OPT_OUT, ("Content-Usage",))
    where = web.url("/a.jpg", host)
    assert outcome.reason == f"TDMRep at {where} says tdm-reservation: 1, though Content-Usage allow it"


def test_a_site_that_says_no_is_not_asked_for_its_pictures(web, fetch):
    host = f"no.{DOMAIN}"
    web.pages[host, "/robots.txt"] = b"User-agent: *\nContent-Signal: ai-train=no\n", ()
    fetch([web.url(f"/image/{row}", host) for row in range(5)], consent=Consent.PUBLISHED)
    asked = {path: count for (at, path), count in web.asked.items() if at == host}
    assert asked == {"/robots.txt": 1, "/ai.txt": 1, "/.well-known/tdmrep.json": 1}


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4) + kind + data + bytes(4)


@pytest.mark.parametrize(
    "text",
    [b"\1\0\0\0not compressed", b"\1\0\0\0" + zlib.compress(b"DataMining" + bytes(1 << 24))],
    ids=["damaged", "bomb"],
)
def test_compressed_xmp_neither_ends_a_fetch_nor_fills_the_memory(text):
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + text) * 200
    found = metadata_of(data)
    assert found is None or sum(map(len, found.packets)) <= MAX_PACKET_BYTES + 1


@pytest.mark.parametrize(
    ("fmt", "part"),
    [("JPEG", b"\xff"), ("JPEG", b"\xff\xe2\0\2"), ("PNG", chunk(b"tEXt", b"")), ("WEBP", b"EXIF\0\0\0\0")],
)
def test_many_parts_of_a_file_are_not_all_passed_over(fmt, part):
    begin = {"JPEG": b"\xff\xd8", "PNG": b"\x89PNG\r\n\x1a\n", "WEBP": b"RIFF\0\0\0\0WEBP"}[fmt]
    more = {"JPEG": b"\xff\xeb\0\4JP", "PNG": chunk(b"caBX", b""), "WEBP": b"C2PA\0\0\0\0"}[fmt]
    assert metadata_of(begin + part * 9_000 + more + bytes(8)).is_signed
    assert metadata_of(begin + part * 11_000 + more + bytes(8)) is None


def test_nested_elements_are_read_in_linear_time():
    """In quadratic time this would take minutes."""
    depth = 40_000
    nested = "<dc:rights>" * depth + "no AI" + "</dc:rights>" * depth
    assert [each.signal for each in xmp(PROPERTIES.format(nested).encode(), "u")][:1] == ["XMP rights"]
    with contextlib.suppress(FormatError):
        licences_of(b"<rsl>" + b"<content>" * depth + b"</content>" * depth + b"</rsl>")


@pytest.mark.parametrize("charset", ["utf-8-sig", "utf-16", "latin-1"])
def test_the_files_of_a_site_are_read_in_another_charset(web, fetch, charset):
    due = {}
    for path, text in {
        "/robots.txt": "# für alle\nUser-agent: *\nContent-Signal: ai-train=no\n",
        "/ai.txt": "# für alle\nUser-agent: *\nDisallow: /\n",
        "/.well-known/tdmrep.json": '[{"location": "/", "tdm-reservation": 1}]',
    }.items():
        host = f"{path.rpartition('/')[2].partition('.')[0]}.{DOMAIN}"
        web.pages[host, path] = text.encode(charset), ("Content-Type: text/plain; charset=us-ascii",)
        due[web.url("/image/1", host)] = {"/robots.txt": "Content-Signal", "/ai.txt": "ai.txt"}.get(path, "TDMRep")
    found = fetch([*due], consent=Consent.PUBLISHED)
    assert [outcome.evidence and outcome.evidence.signal for outcome in found] == [*due.values()]


def test_of_a_megabyte_of_rules_the_beginning_counts_and_a_cut_table_is_a_condition(web, fetch):
    rules = {
        "first": b"User-agent: *\nDisallow: /image/\n" + b"# more\n" * 150_000,
        "last": b"# more\n" * 150_000 + b"User-agent: *\nDisallow: /image/\n",
        "many": b"User-agent: *\n" + b"Allow: /x\n" * 100_000,
    }
    for name, body in rules.items():
        web.pages[f"{name}.{DOMAIN}", "/robots.txt"] = body, ()
    table = [{"location": f"/{number}", "tdm-reservation": 0} for number in range(25_000)]
    web.pages[f"table.{DOMAIN}", "/.well-known/tdmrep.json"] = json.dumps(table).encode(), ()
    urls = [web.url("/image/1", f"{name}.{DOMAIN}") for name in (*rules, "table")]
    for policy, last in ((Consent.PUBLISHED, Status.SUCCESS), (Consent.STRICT, Status.OPT_OUT)):
        statuses = [outcome.status for outcome in fetch(urls, consent=policy)]
        assert statuses == [Status.ROBOTS, Status.SUCCESS, Status.ROBOTS, last]


def test_each_site_of_a_redirect_is_asked_and_a_later_no_counts(web, fetch):
    there, url = f"other.{DOMAIN}", web.url("/elsewhere/1")
    web.robots[f"host.{DOMAIN}"] = "User-agent: *\nContent-Signal: ai-train=yes\n"
    web.robots[there] = "User-agent: *\nContent-Signal: ai-train=no\n"
    (outcome,) = fetch([url], consent=Consent.PUBLISHED)
    assert (outcome.status, outcome.evidence.url) == (Status.OPT_OUT, web.url("/robots.txt", there))
    assert not web.asked[there, "/image/1.jpg"]
    web.robots[there] = "User-agent: *\nContent-Signal: ai-train=yes\n"
    web.pages[there, "/image/1.jpg"] = picture(), ("Content-Usage: train-ai=n",)
    (outcome,) = fetch([url], consent=Consent.PUBLISHED)
    said = outcome.evidence
    assert (said.signal, said.url, said.despite) == (
        "Content-Usage",
        web.url("/image/1.jpg", there),
        ("Content-Signal",),
    )
    web.robots[f"host.{DOMAIN}"] = "User-agent: *\nContent-Signal: ai-train=no\n"
    web.asked.clear()
    assert fetch([url], consent=Consent.PUBLISHED)[0].evidence.url == web.url("/robots.txt")
    assert not any(host == there for host, _ in web.asked)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize(("fmt", "before"), [("JPEG", b"jumb"), ("JPEG", b"jumd"), ("PNG", b"jumb"), ("PNG", b"caBX")])
def test_boxes_of_c2pa_with_hostile_lengths_are_a_condition_or_nothing(fmt, before, length):
    data = signed_no(fmt)
    at = data.index(before) - 4
    said = said_by(data[:at] + length.to_bytes(4) + data[at + 4 :])
    assert said in ([], [("C2PA", "conditions")], [("C2PA", "no")])
