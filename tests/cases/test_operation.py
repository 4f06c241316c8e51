"""What operators rely on: metrics, health, keys, the queue, the end."""

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cases.asking import CHAT, answer, refused
from e2e.serving import VERIFY, Server


@pytest.mark.case("metrics-prefix-01")
def test_the_exposition_parses_and_every_family_is_described(server: Server) -> None:
    answer(server)
    refused(server, "n", n=0)
    server.check_idle()
    families = list(text_string_to_metric_families(server.get("/metrics").text))
    assert len(families) > 20
    for family in families:
        assert family.documentation, family.name
        assert family.type != "unknown", family.name
        for sample in family.samples:
            if family.type == "counter" and not sample.name.endswith("_created"):
                assert sample.name.endswith("_total")
            assert sample.value >= 0, sample
    server.check_idle()


@pytest.mark.case("cors-01")
def test_a_foreign_page_may_not_call(server: Server) -> None:
    for origin in ("https://evil.example", "null", "http://localhost.evil.example", "http://127.0.0.1.evil.example"):
        for method in ("OPTIONS", "POST"):
            headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            response = httpx2.request(method, server.url + CHAT, headers=headers, verify=VERIFY)
            assert "access-control-allow-origin" not in response.headers
    for origin in ("http://localhost:3000", "http://127.0.0.1", "https://[::1]:8080"):
        response = httpx2.get(server.url + "/v1/models", headers={"Origin": origin}, verify=VERIFY)
        assert response.headers["access-control-allow-origin"] == origin


@pytest.mark.case("auth-health-02")
def test_health_needs_no_key_and_tells_none(server: Server) -> None:
    for path in ("/health", "/ready"):
        response = server.get(path)
        assert response.status_code == 200
        assert "key" not in response.text.lower()
