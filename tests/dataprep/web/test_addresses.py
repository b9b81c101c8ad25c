"""Which URLs and addresses are refused, as values; test_ssrf.py shows it with sockets."""

import contextlib
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from dataprep.web.addresses import checked_url, parse_networks, refusal
from dataprep.web.requests import Failed, Status
from tests.support.hostile_urls import BAD, PUBLIC, REFUSED


@pytest.mark.parametrize(("address", "name"), REFUSED.items())
def test_addresses_that_are_not_public_are_refused_with_their_kind(address, name):
    assert name in refusal(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_not_refused(address):
    assert refusal(address) is None


@given(st.ip_addresses())
def test_every_accepted_address_is_global_for_the_standard_library(address):
    if refusal(str(address)) is None:
        mapped = getattr(address, "ipv4_mapped", None)
        judged = mapped or address
        nat64 = address in ipaddress.ip_network("64:ff9b::/96")
        assert judged.is_global or nat64
        assert not (judged.is_multicast or judged.is_loopback or judged.is_link_local or judged.is_unspecified)
        assert not (judged.is_reserved and judged.version == 4)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_inside_an_ipv6_address_is_judged_as_itself(address):
    plain = refusal(str(address)) is None
    assert (refusal(f"::ffff:{address}") is None) == plain
    assert (refusal(str(ipaddress.IPv6Address(f"64:ff9b::{address}"))) is None) == plain


def test_a_network_may_be_allowed_but_for_metadata():
    networks = parse_networks(["10.0.0.0/8", "0.0.0.0/0", "::/0"])
    assert refusal("10.2.3.4", networks) is None
    assert refusal("127.0.0.1", networks) is None
    for address in ("169.254.169.254", "::ffff:169.254.169.254", "fe80::1", "fd00:ec2::254", "168.63.129.16"):
        assert refusal(address, networks) is not None


@pytest.mark.parametrize(
    "text", ["169.254.0.0/16", "169.254.169.254/32", "fe80::/64", "fd00:ec2::254", "168.63.129.16"]
)
def test_link_local_and_metadata_are_never_allowed(text):
    with pytest.raises(UsageError, match="never fetched from; leave it out"):
        parse_networks([text])


@pytest.mark.parametrize("text", ["10.0.0.1/8", "ten", "10.0.0.0/33", ""])
def test_a_malformed_network_is_refused(text):
    with pytest.raises(UsageError, match=r"expected a network as 10\.1\.0\.0/16"):
        parse_networks([text])


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("http://example.org", "http://example.org/"),
        (" HTTPS://Example.ORG:443/a b?c=d e#f ", "https://example.org/a%20b?c=d%20e"),
        ("http://example.org:8080/%7Ea/%2e%2E?x=%2B+&y", "http://example.org:8080/%7Ea/%2e%2E?x=%2B+&y"),
        ("http://bücher.example/ü.jpg", "http://xn--bcher-kva.example/%C3%BC.jpg"),
        ("http://my_bucket.example./x", "http://my_bucket.example./x"),
        ("http://8.8.8.8/x", "http://8.8.8.8/x"),
        ("http://[2606:4700:0::1111]:80/x", "http://[2606:4700::1111]/x"),
    ],
)
def test_a_url_is_encoded_as_a_browser_does(text, sent):
    assert str(checked_url(text)) == sent


@pytest.mark.parametrize(("text", "reason"), BAD.items(), ids=[repr(text)[:40] for text in BAD])
def test_urls_that_are_not_public_web_addresses_are_refused(text, reason):
    with pytest.raises(Failed) as failed:
        checked_url(text)
    assert failed.value.status is Status.BAD_URL
    assert reason in failed.value.reason


@pytest.mark.parametrize("address", [address for address in REFUSED if ":" in address and "%" not in address])
def test_an_address_in_the_url_is_judged(address):
    with pytest.raises(Failed) as failed:
        checked_url(f"http://[{address}]/")
    assert failed.value.status is Status.REFUSED_ADDRESS


@given(st.text() | st.text(alphabet="htps:/@[].%0127x\\?#").map(lambda text: "http://" + text))
def test_any_text_is_a_url_or_refused(text):
    with contextlib.suppress(Failed):  # any other error fails the test
        url = checked_url(text)
        assert url.scheme in ("http", "https") and url.raw_host and url.user is None
        assert str(url).isascii() and not set(str(url)) & set(" \r\n\t\0")
