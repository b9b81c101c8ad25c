"""Variables that lead clients through the guard, and what users have set already."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dataprep.errors import UsageError
from dataprep.guard.clients import (
    CA_VARIABLES,
    client_environment,
    environment_of_clients,
    usual_certificates,
)

URL, BUNDLE = "http://127.0.0.1:5000", Path("/tmp/bundle.pem")


def test_clients_are_led_to_the_guard_and_trust_it():
    found = client_environment(URL, BUNDLE, {})
    assert found["HTTPS_PROXY"] == found["https_proxy"] == URL
    assert {found[name] for name in CA_VARIABLES} == {str(BUNDLE)}
    assert json.loads(found["FSSPEC_GCS"]) == {"session_kwargs": {"trust_env": True}}
    assert "STORAGE_EMULATOR_HOST" not in found


def test_an_emulator_of_the_command_is_replaced_by_the_guard():
    found = client_environment(URL, BUNDLE, {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:4443"})
    assert found["STORAGE_EMULATOR_HOST"] == URL


def test_settings_of_gcsfs_are_kept():
    text = '{"token": "anon", "session_kwargs": {"trust_env": false, "raise_for_status": false}}'
    found = json.loads(client_environment(URL, BUNDLE, {"FSSPEC_GCS": text})["FSSPEC_GCS"])
    assert found == {"token": "anon", "session_kwargs": {"trust_env": True, "raise_for_status": False}}
    with pytest.raises(UsageError, match="FSSPEC_GCS is 'x', expected a JSON object"):
        client_environment(URL, BUNDLE, {"FSSPEC_GCS": "x"})


@pytest.mark.parametrize(
    ("listed", "kept"),
    [("example.org,.googleapis.com", "example.org"), ("*", ""), ("storage.googleapis.com:443,10.0.0.1", "10.0.0.1"),
     ("googleapis.com", ""), (".internal", ".internal")],
)  # fmt: skip
def test_no_proxy_keeps_nothing_of_cloud_storage(listed, kept):
    found = client_environment(URL, BUNDLE, {"no_proxy": listed})["NO_PROXY"]
    assert found == ",".join(filter(None, ("localhost,127.0.0.1,::1,metadata.google.internal,169.254.169.254", kept)))


def test_a_proxy_that_is_set_already_is_refused():
    with pytest.raises(UsageError, match=r"HTTPS_PROXY is set to 'http://proxy:3128', .*unset it"):
        client_environment(URL, BUNDLE, {"HTTPS_PROXY": "http://proxy:3128"})


def test_certificates_that_a_user_names_stay_trusted(tmp_path):
    (tmp_path / "own.pem").write_bytes(b"own")
    assert usual_certificates({"REQUESTS_CA_BUNDLE": str(tmp_path / "own.pem")}) == b"own"
    assert b"BEGIN CERTIFICATE" in usual_certificates({})
    with pytest.raises(UsageError, match="certificates cannot be read"):
        usual_certificates({"SSL_CERT_FILE": str(tmp_path / "absent.pem")})


def test_variables_are_set_inside_the_block_only(monkeypatch):
    import fsspec.config

    monkeypatch.setenv("NO_PROXY", "before")
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    values = {"NO_PROXY": "inside", "HTTPS_PROXY": URL, "FSSPEC_GCS": '{"project": "p"}'}
    with environment_of_clients(values):
        assert {name: os.environ[name] for name in values} == values
        assert fsspec.config.conf["gcs"] == {"project": "p"}
    assert os.environ["NO_PROXY"] == "before"
    assert "HTTPS_PROXY" not in os.environ
    assert "gcs" not in fsspec.config.conf
