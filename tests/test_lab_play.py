"""Changes of queue, jitter and loss in a running lab, and events that are played in it."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import needs, needs_lab
from test_lab import a_lab, forward_of, labs_of_a_module, sat, set_link, status, wait_until
from test_live import BENTPIPE, bentpipe

from bentpipe.errors import ScenarioError, UsageError
from bentpipe.live import sockets
from bentpipe.live.changes import change_link, link_changes, read_events
from bentpipe.live.link_state import largest_plans, link_state, with_changes, with_outages
from bentpipe.plan.presets import link_plan

__all__ = ["labs_of_a_module", "sat"]

GEO = [link_plan("geo")]
S = 10**9


def queue(*settings: str, plans: list[Any] | None = None) -> Any:
    """Return the queue of the forward direction that settings ask for."""
    (change,) = link_changes([f"link.forward.{text}" for text in settings], plans or GEO)
    return change["queue"]


# --- settings -----------------------------------------------------------------------------------


def test_a_limit_keeps_the_discipline() -> None:
    assert queue("queue.limit=100 kB") == {
        "discipline": "drop_tail",
        "limit": {"unit": "bytes", "value": 100_000},
    }
    # 16 Mbit/s and 542 ms.
    half = queue("queue.limit=0.5 bdp")
    assert half["limit"] == {"unit": "link_bytes", "value": 542_000}


def test_a_discipline_has_its_own_defaults_and_options() -> None:
    codel = queue("queue.discipline=fq_codel", "queue.target=20ms")
    assert codel["discipline"] == "fq_codel"
    assert codel["target_ns"] == 20_000_000
    # A limit that follows changes this queue.
    changed = with_changes(GEO, link_changes(["link.forward.queue.discipline=fq_codel"], GEO))
    limited = queue("queue.limit=99 packets", plans=list(changed))
    assert (limited["discipline"], limited["limit"]["value"]) == ("fq_codel", 99)
    assert limited["target_ns"] == 5_000_000


def test_loss_and_jitter_are_settings() -> None:
    (change,) = link_changes(["link.return.loss=1.5%", "link.return.jitter=5ms"], GEO)
    assert (change["loss_rate"], change["jitter_ns"]) == (0.015, 5_000_000)
    assert change["queue"] is None
    assert link_changes(["link.return.loss=0 %"], GEO)[0]["loss_rate"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["queue.target=5ms"], "queue.target: a running link has a new queue or another limit"),
        (["queue.discipline=fifo"], 'read "fifo"; allowed: drop_tail'),
        (["queue.limit=10 B"], "smaller than one packet"),
        (["queue.discipline=strict_priority"], "as many classes from the start"),
        (["loss=1"], "expected a percentage"),
        # An empty variable would be the default, no loss.
        (["loss="], "has no value"),
        (["queue.limit="], "has no value"),
        (["errors=1"], "a running link can change"),
    ],
)
def test_bad_settings_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises((UsageError, ScenarioError), match=message):
        queue(*settings)


# --- clients and the daemon -----------------------------------------------------------------------


@needs_lab
def test_the_daemon_resolves_nothing_and_clients_lose_no_change(sat: int) -> None:
    """Given six clients at the same time, expect six changes, by a process without pydantic."""
    ask = partial(sockets.request, "sat")
    link, before = ask("link"), status("sat")["changes"]
    assert link["super_packets"] is False
    settings = [[f"link.forward.queue.limit={100 + each} packets"] for each in range(6)]
    with ThreadPoolExecutor() as clients:
        replies = list(clients.map(partial(change_link, ask), settings))
    changes = status("sat")["changes"][len(before) :]
    assert sorted(changes, key=str) == sorted(replies, key=str)
    assert sorted(each["settings"] for each in changes) == settings
    now = ask("link")
    assert now["revision"] == link["revision"] + 6
    last = int(changes[-1]["settings"][0].split("=")[1].split()[0])
    assert now["plans"][0]["directions"][0]["queue"]["limit"]["value"] == last
    stale = ask("set", settings=["x"], changes=[], revision=link["revision"])
    assert stale == {"revision": now["revision"]}
    assert status("sat")["changes"][len(before) :] == changes
    assert "pydantic" not in Path(f"/proc/{sat}/maps").read_text()


@pytest.mark.system
def test_the_daemon_of_a_lab_imports_no_scenario_and_no_resolution() -> None:
    code = (
        "import sys, bentpipe.live.daemon, bentpipe.live.gateways as peps\n"
        "peps.most_connections({'connections': 1})\n"
        "print([name for name in sys.modules if name.startswith(('bentpipe.scenario.', 'pydantic'))"
        " or name in {'bentpipe.plan.plan', 'bentpipe.live.changes'}])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_client_sends_integers_and_resolves_again_if_another_was_faster() -> None:
    """Given a queue that another client replaces meanwhile, expect the limit of the new one."""
    plain, other = ["link.forward.queue.limit=7 packets"], "link.forward.queue.discipline=fq_codel"
    before = largest_plans([link_plan("geo")])
    plans = [before, with_changes(before, link_changes([other], before))]
    sent: list[dict[str, Any]] = []

    def ask(action: str, **arguments: Any) -> dict[str, Any]:
        if action == "link":
            return {"revision": len(sent), "plans": plans[len(sent)], "super_packets": False}
        sent.append(arguments)
        return {"at_ns": 5} if len(sent) == len(plans) else {"revision": 1}

    assert change_link(ask, plain) == {"at_ns": 5}
    assert [each["revision"] for each in sent] == [0, 1]
    assert [each["settings"] for each in sent] == [plain, plain]
    queues = [each["changes"][0]["queue"] for each in sent]
    assert [queue["discipline"] for queue in queues] == ["drop_tail", "fq_codel"]
    assert {json.dumps(queue["limit"]) for queue in queues} == {'{"unit": "packets", "value": 7}'}
    assert link_changes(plain, plans[0]) == link_changes(plain, [link_plan("geo")])


# --- files of events ----------------------------------------------------------------------------


def events(tmp_path: Path, content: Any) -> Path:
    file = tmp_path / "events.yaml"
    file.write_text(json.dumps(content))
    return file


def test_events_are_played_once_or_repeated(tmp_path: Path) -> None:
    listed = [{"at": "1 s", "set": ["a=1"]}, {"at": "2 s", "set": ["b=2", "c=3"]}]
    once = list(read_events(events(tmp_path, {"events": listed})).times())
    assert once == [(S, ("a=1",)), (2 * S, ("b=2", "c=3"))]
    repeated = read_events(events(tmp_path, {"repeat": "10 s", "events": listed})).times()
    assert [next(repeated)[0] for _ in range(5)] == [S, 2 * S, 11 * S, 12 * S, 21 * S]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"events": []}, "events"),
        ({"events": [{"at": "1 s"}]}, "set"),
        ({"event": []}, 'did you mean "events"'),
        (
            {"events": [{"at": "2 s", "set": ["a=1"]}, {"at": "1 s", "set": ["a=1"]}]},
            "events.1.at",
        ),
        ({"repeat": "1 s", "events": [{"at": "2 s", "set": ["a=1"]}]}, "repeat"),
    ],
)
def test_bad_files_of_events_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read_events(events(tmp_path, content))


# --- in a lab -----------------------------------------------------------------------------------


@pytest.mark.thorough
@needs_lab
@needs("ping")
@pytest.mark.usefixtures("sat")
def test_a_new_queue_takes_the_packets_that_wait() -> None:
    """Given six packets in an outage, one on the transmitter, and a limit of 2, expect three drops.

    The two that wait and the first arrive after the outage, also through FQ-CoDel.
    """
    ping = ["ping", "-c", "6", "-i", "0.1", "-W", "30", "world"]
    set_link("sat", "link.forward.outage=on")
    with subprocess.Popen(
        [*BENTPIPE, "lab", "exec", "sat", "--", *ping], stdout=subprocess.PIPE, text=True
    ) as pinging:

        def queued() -> int:
            return int(forward_of("sat")["queue_packets"])

        def dropped() -> Any:
            return forward_of("sat")["dropped_packets"]

        wait_until(lambda: queued() == 5, "nothing waits")
        set_link("sat", "link.forward.queue.limit=2 packets")
        wait_until(lambda: dropped() == {"queue_full": 3}, "nothing was dropped")
        set_link("sat", "link.forward.queue.discipline=fq_codel")
        wait_until(lambda: queued() == 2, "packets were lost")
        set_link("sat", "link.forward.outage=off")
        shown, _ = pinging.communicate()
    assert "6 packets transmitted, 3 received" in shown


@needs_lab
@needs("ping")
@pytest.mark.usefixtures("sat")
def test_events_change_the_link_of_a_lab_if_all_are_right(tmp_path: Path) -> None:
    """Given full loss from 0 s and none from 0.3 s on, expect both changes, then pings.

    Given a wrong event, expect no change.
    """
    lossy = {"at": "0 s", "set": ["link.forward.loss=100 %", "link.return.jitter=3ms"]}
    good = {"at": "300 ms", "set": ["link.forward.loss=0 %"]}
    bad = {"at": "1 s", "set": ["link.forward.rate=fast"]}
    file = events(tmp_path, {"events": [lossy, good]})
    before_ns = status("sat")["report"]["at_ns"]
    played = bentpipe("lab", "play", "sat", str(file))
    assert played.returncode == 0, played.stderr
    changes = status("sat")["changes"]
    first, second = changes[-2:]
    assert first["settings"] == lossy["set"]
    # On a busy machine each is late by another time, and none is early.
    assert second["at_ns"] - before_ns >= 0.3 * S
    ran = bentpipe("lab", "exec", "sat", "--", "ping", "-c", "2", "-i", "0.1", "world")
    assert ran.returncode == 0, ran.stdout
    file = events(tmp_path, {"events": [lossy, bad]})
    played = bentpipe("lab", "play", "sat", str(file))
    assert played.returncode == 2
    assert "link.forward.rate" in played.stderr
    assert status("sat")["changes"] == changes
    assert bentpipe("lab", "play", "sun", str(file)).returncode == 2


# --- the present link -----------------------------------------------------------------------------


def test_the_present_link_has_changes_and_the_steps_of_its_plan() -> None:
    """Given outages of 40 ms every 15 s, expect rate 0 in them, and another delay after each."""
    plans = [link_plan("geo"), link_plan("leo-handover")]
    names = ["forward", "return", "forward-2", "return-2"]
    now = link_state(plans, {}, names, 15 * S)
    assert now["forward"] == {"rate_bps": 16_000_000, "delay_ns": 271_000_000, "outage": False}
    assert (now["forward-2"]["rate_bps"], now["forward-2"]["outage"]) == (0, True)
    after = link_state(plans, {}, names, 15 * S + S // 20)
    assert (after["forward-2"]["rate_bps"] > 0, after["forward-2"]["outage"]) == (True, False)
    assert (
        after["forward-2"]["delay_ns"] != link_state(plans, {}, names, 0)["forward-2"]["delay_ns"]
    )
    changes = link_changes(["hop.1.link.return.outage=2s", "hop.1.link.return.rate=1Mbit/s"], plans)
    changed = with_changes(plans, changes)
    ends = with_outages({}, changes, 5 * S)
    for at_ns, expected in ((6 * S, True), (7 * S, False)):
        state = link_state(changed, ends, names, at_ns)["return"]
        assert (state["rate_bps"], state["outage"]) == (1_000_000, expected)
    off = with_outages(ends, link_changes(["link.return.outage=off"], changed), 6 * S)
    assert not link_state(changed, off, names, 6 * S)["return"]["outage"]


@needs_lab
def test_the_status_has_the_present_rate_and_delay() -> None:
    with a_lab("far", "--link", "geo"):
        before = bentpipe("lab", "status", "far").stdout
        assert "forward now: 16 Mbit/s, 271 ms; 0 packets in the queue" in before
        changes = ("link.forward.rate=2Mbit/s", "link.forward.delay=30ms", "link.return.outage=on")
        set_link("far", *changes)
        after = bentpipe("lab", "status", "far").stdout
        assert "forward now: 2 Mbit/s, 30 ms; 0 packets in the queue" in after
        assert "return now: outage, 271 ms; 0 packets in the queue" in after
        shown = status("far")["link"]["forward"]
        assert shown == {"rate_bps": 2_000_000, "delay_ns": 30_000_000, "outage": False}
