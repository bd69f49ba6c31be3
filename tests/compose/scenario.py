"""The story: build, start, submit, kill Valkey, start it again, judge, watch, stop."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from ops.demo.claims import Claim
from support.waiting import eventually

from . import judge
from .engine import ROOT, Project, docker, to_be_had
from .judge import RUNNING
from .traffic import ACCEPTED, Traffic

T = TypeVar("T")

BEFORE, DEAD, AFTER = 100, 30, 30  # documents submitted before Valkey dies, while it is dead, and after
JOBS = BEFORE + DEAD + AFTER
#: Jobs that have succeeded when Valkey is killed: the stream flows, and most of it is still to come.
FLOWING = 10
#: 160 renders of 1 s by 8 threads take 20 s; the rest is for a machine with other work.
FINISH_SECONDS = 180.0
HEALTH_SECONDS = 120.0
PORTAL_PORT, PROMETHEUS_PORT, GRAFANA_PORT = 8080, 9090, 3000
PNG = b"\x89PNG\r\n\x1a\n"
PROMETHEUS = "ONCOMMIT_PROMETHEUS_IMAGE"
STAND_IN = "oncommit-prometheus:local"


@dataclass
class Scenario:
    """One run; `claims` grows along the way, `say` is told what is going on."""

    project: Project
    secrets: Path
    say: Callable[[str], None]
    claims: list[Claim] = field(default_factory=list)

    def claim(self, text: str, *, expected: object, measured: object) -> None:
        """Note what was measured."""
        self.claims.append(Claim(text, expected, measured))

    def run(self) -> None:
        """Go through it all, but for taking everything down."""
        self.say("building the images")
        self.project.compose("build", "--quiet")
        self.say("starting")
        self.project.compose("up", "--detach", "--no-build")
        self._all_healthy("healthy after the start")
        traffic = self._traffic()
        self._lose_valkey(traffic)
        self._judge_jobs(traffic)
        self._all_healthy("healthy after it all")
        self._judge_containers()
        self._watch(traffic)
        self._stop()

    def _all_healthy(self, text: str) -> None:
        """Wait until every container says that it does its work."""

        def health() -> dict[str, int]:
            return judge.healthy(self.project.containers())

        try:
            eventually(lambda: health() == dict(RUNNING), timeout=HEALTH_SECONDS, every=1.0, describe=health)
        except AssertionError:
            self.claim(text, expected=dict(RUNNING), measured=health())
            raise
        self.claim(text, expected=dict(RUNNING), measured=health())

    def _operator(self, *arguments: str) -> str:
        return self.project.compose("run", "--rm", "--no-deps", "-T", "oncommit", *arguments)

    def _traffic(self) -> Traffic:
        self.say("making a team and a token")
        self._operator("teams", "create", "red")
        token = self._operator("tokens", "create", "--team", "red", "--json")
        return Traffic(self.project.urls("portal", PORTAL_PORT), json.loads(token)["token"])

    def _lose_valkey(self, traffic: Traffic) -> None:
        self.say(f"submitting {BEFORE} documents")
        batch = traffic.submit_batch(BEFORE)
        eventually(lambda: traffic.succeeded(batch) >= FLOWING, timeout=FINISH_SECONDS)
        [valkey] = [container["Id"] for container in self.project.containers("valkey")]
        docker("kill", valkey)
        under_way = BEFORE - traffic.succeeded(batch)
        self.say(f"Valkey is killed, {under_way} jobs are under way; submitting {DEAD} more")
        self.claim(f"jobs under way when Valkey died: {under_way}", expected=True, measured=under_way > 0)
        traffic.submit(DEAD)
        docker("start", valkey)
        self.say(f"Valkey is started again; submitting {AFTER} more")
        traffic.submit(AFTER)
        self.claim(
            "answers to POST: a batch and jobs",
            expected={ACCEPTED: 1 + DEAD + AFTER},
            measured=_count(traffic.answers),
        )
        eventually(lambda: not traffic.unfinished(), timeout=FINISH_SECONDS, every=0.5)

    def _judge_jobs(self, traffic: Traffic) -> None:
        jobs = [traffic.job(job) for job in traffic.jobs]
        events = [Counter(traffic.events(job)) for job in traffic.jobs]
        self.claim("jobs by status", expected={"succeeded": JOBS}, measured=_count(j["status"] for j in jobs))
        self.claim("attempts of a job", expected={1: JOBS}, measured=_count(j["attempt"] for j in jobs))
        for word in ("accepted", "claimed", "succeeded"):
            self.claim(
                f"events `{word}` of a job", expected={1: JOBS}, measured=_count(e[word] for e in events)
            )
        preview = traffic.get(f"/v1/jobs/{traffic.jobs[0]}/preview")
        self.claim("a preview is a PNG", expected=PNG, measured=preview.content[: len(PNG)])

    def _judge_containers(self) -> None:
        containers = self.project.containers()
        self.claim(
            "restarts, memory exhausted, bad ends", expected=[], measured=judge.troubles(containers, "valkey")
        )
        self.claim(
            "what a container may do too much",
            expected=[],
            measured=[m for c in containers for m in judge.unconfined(c)],
        )
        texts = [file.read_text(encoding="ascii").strip() for file in self.secrets.iterdir()]
        passwords = [urlsplit(text).password or text for text in texts]
        places = {f"{c['Name']} (engine)": judge.as_text(c) for c in containers}
        places |= {f"{name} (logs)": text for name, text in self.project.logs().items()}
        self.claim("places that tell a password", expected=[], measured=judge.told(passwords, places))

    def _watch(self, traffic: Traffic) -> None:
        """Start Prometheus and Grafana where their images can be had, and ask them."""
        images = {s: self.project.config()["services"][s]["image"] for s in ("prometheus", "grafana")}
        if not to_be_had(images["prometheus"]):
            self.say(f"{images['prometheus']} cannot be had: Debian's Prometheus stands in")
            folder = ROOT / "tests" / "compose"
            docker(
                "build",
                "--quiet",
                "--tag",
                STAND_IN,
                "--file",
                str(folder / "prometheus.Dockerfile"),
                str(folder),
            )
            self.project.env[PROMETHEUS] = images["prometheus"] = STAND_IN
        services = ["prometheus"]
        if to_be_had(images["grafana"]):
            services.append("grafana")
        else:
            self.say(
                f"{images['grafana']} cannot be had: its files are checked by tests/compose/test_files.py"
            )
        self._check_rules(images["prometheus"])
        self.project.compose("--profile", "watch", "up", "--detach", "--no-build", "--wait", *services)
        self._ask_prometheus(len(traffic.jobs))
        if "grafana" in services:
            [grafana] = self.project.urls("grafana", GRAFANA_PORT)
            password = (self.secrets / "grafana_password").read_text(encoding="ascii").strip()
            found = httpx.get(
                f"{grafana}/api/dashboards/uid/oncommit", auth=("admin", password), trust_env=False
            )
            self.claim("Grafana has the dashboard", expected=200, measured=found.status_code)

    def _check_rules(self, image: str) -> None:
        rules = ["test", "rules", "/etc/prometheus/rules_test.yml"]
        mount = f"{ROOT / 'compose' / 'prometheus'}:/etc/prometheus:ro"
        said = docker(
            "run", "--rm", "--network=none", "--volume", mount, "--entrypoint=promtool", image, *rules
        )
        self.claim("promtool test rules", expected="SUCCESS", measured=said.split()[-1])

    def _ask_prometheus(self, accepted: int) -> None:
        [url] = self.project.urls("prometheus", PROMETHEUS_PORT)
        with httpx.Client(base_url=f"{url}/api/v1", trust_env=False) as prometheus:

            def up() -> dict[str, int]:
                targets = prometheus.get("/targets").json()["data"]["activeTargets"]
                return _count(t["labels"]["job"] for t in targets if t["health"] == "up")

            def counted() -> int:
                query = {"query": "sum(jobs_accepted_total)"}
                found = prometheus.get("/query", params=query).json()["data"]["result"]
                return int(found[0]["value"][1]) if found else 0

            expected = {"portal": 2, "relay": 2, "worker": 2}
            eventually(lambda: up() == expected and counted() == accepted, describe=lambda: (up(), counted()))
            self.claim("Prometheus' targets that are up", expected=expected, measured=up())
            self.claim("jobs accepted, as Prometheus counts", expected=accepted, measured=counted())
            groups = prometheus.get("/rules").json()["data"]["groups"]
            bad = [rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "err"]
            self.claim("rules that cannot be evaluated", expected=[], measured=bad)

    def _stop(self) -> None:
        self.say("stopping")
        self.project.compose("--profile", "watch", "stop")
        ends = {c["Name"].lstrip("/"): c["State"]["ExitCode"] for c in self.project.containers()}
        bad = {name: code for name, code in ends.items() if code != 0}
        self.claim("containers that did not stop in order", expected={}, measured=bad)


def _count(things: Iterable[T]) -> dict[T, int]:
    return dict(Counter(things))
