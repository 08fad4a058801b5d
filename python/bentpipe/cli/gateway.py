"""Verbs of gateways on a real router: ``gateway up``, ``status``, ``down`` and others."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bentpipe import gateway, plan as plans
from bentpipe.cli.lazy import LazyGroup, examples_text
from bentpipe.cli.options import (
    AsJson,
    argument,
    complete_files,
    flag,
    note,
    print_checks,
    print_json,
    show_status,
    up_for,
)
from bentpipe.errors import MachineError, ScenarioError, UsageError
from bentpipe.text import choice, counted
from bentpipe.units import NS_PER_S, format_duration, format_rate, format_size

if TYPE_CHECKING:
    from bentpipe.gateway.config import GatePlan, GatewayConfig

_SUFFIX: Final = ".toml"
_UNIT: Final = Path(__file__).with_name("gateway.service")
# PrivateDevices= would hide it.
_TUN_DEVICE: Final = "DevicePolicy=closed\nDeviceAllow=/dev/net/tun rw\n"
_TUN_MODULE: Final = " modprobe@tun.service"
_KEEPS_CLOSED: Final = (
    "# After it was killed, packets for its tunnel are refused until it is up again, or until\n"
    "# bentpipe gateway down, which needs the files of this folder.\nRuntimeDirectoryPreserve=yes\n"
)

gateway_app = typer.Typer(
    cls=LazyGroup,
    help="Run the functions of a gateway on a real router.",
    epilog=examples_text(
        "bentpipe gateway up sat.toml",
        "bentpipe gateway status",
        "bentpipe gateway down",
    ),
    rich_markup_mode=None,
    callback=lambda: None,
)


def _complete_configs(incomplete: str) -> Iterable[str]:
    """Return the configuration files and folders that a text may become."""
    return complete_files(incomplete, {_SUFFIX})


def _complete_names() -> list[str]:
    """Return the names of the gateways."""
    return list(gateway.gateway_names())


Config = Annotated[
    Path,
    argument(
        "CONFIG",
        "The configuration of the gateway (TOML).",
        _complete_configs,
    ),
]
Name = Annotated[
    str | None,
    argument(
        "[NAME]",
        "The name of the gateway, or its configuration; by default the only one that is up.",
        _complete_names,
    ),
]


@gateway_app.command(epilog=examples_text("bentpipe gateway check sat.toml"))
def check(config: Config, as_json: AsJson = False) -> None:
    """Check whether a gateway would work here. Changes nothing.

    The kernel may load modules that it has.
    """
    settings, plan = _read(config)
    folder = gateway.GatewayFolder(settings.name)
    is_up = folder.is_up()
    checks = gateway.examine(settings, plan, has_own=folder.exists(), is_up=is_up)
    if is_up:
        note(f"gateway {settings.name} is up; its own rules are in nobody's way")
    if as_json:
        ok = all(check.passes for check in checks)
        print_json({"ok": ok, "checks": [asdict(check) for check in checks], "plan": plan})
    else:
        print_checks(checks)
    if not all(check.passes for check in checks):
        raise MachineError(
            f"gateway {settings.name} would not work here: {gateway.summary(checks)}"
        )


@gateway_app.command(
    epilog=examples_text(
        "bentpipe gateway up sat.toml", "bentpipe gateway up sat.toml --foreground"
    )
)
def up(
    config: Config,
    foreground: Annotated[
        bool, flag("--foreground", "Stay until SIGTERM or Ctrl-C, as services do.")
    ] = False,
) -> None:
    """Start a gateway that runs until `gateway down`. Processes of its own keep it.

    It refuses to start where it would break connections, and says what to change.
    """
    settings, plan = _read(config)
    name, text = settings.name, action_text(settings.described())
    if foreground:
        note(f"gateway {name} {text}; press Ctrl-C to end it")
        gateway.become(settings, plan, config)
    process = gateway.start(settings, plan, config)
    said = gateway.GatewayFolder(name).last_line()
    note(f"gateway {name} is up, kept by process {process}: it {text}")
    if said is not None:
        note(said)
    note(f"bentpipe gateway status {name} shows what it does, bentpipe gateway down {name} ends it")


@gateway_app.command(epilog=examples_text("bentpipe gateway down", "bentpipe gateway down sat"))
def down(name: Name = None) -> None:
    """End a gateway and remove its rules, also those that a killed one has left.

    Connections that a PEP has split are reset; new ones pass without it. The device of a tunnel is
    removed; packets for its networks take the router's other routes again, in clear text.
    """
    chosen = _chosen(name)
    counters = gateway.stop(chosen)
    if counters is not None:
        for line in totals_lines(counters):
            note(line)
    note(f"gateway {chosen} has ended; nothing of it is left")


@gateway_app.command(
    epilog=examples_text("bentpipe gateway status", "bentpipe gateway status sat --watch")
)
def status(
    name: Name = None,
    as_json: AsJson = False,
    watch: Annotated[
        bool, flag("--watch", "Update the status until the gateway ends, or Ctrl-C.")
    ] = False,
) -> None:
    """Print the status of a gateway: connections of a PEP, peers of a tunnel."""
    chosen = _chosen(name)
    show_status(
        f"gateway {chosen}",
        lambda: _status(chosen),
        status_lines,
        Rates().status_lines if watch else None,
        ends=(MachineError, UsageError),
        as_json=as_json,
    )


@gateway_app.command(
    epilog=examples_text("bentpipe gateway unit /etc/bentpipe/sat.toml > bentpipe-sat.service")
)
def unit(config: Config) -> None:
    """Print a unit for systemd that keeps a gateway, with few privileges."""
    settings, plan = _read(config)
    print(_unit_text(settings, plan, config), end="")


@gateway_app.command(epilog=examples_text("bentpipe gateway keygen /etc/bentpipe/key"))
def keygen(
    file: Annotated[Path, argument("FILE", "The file for the private key; it must not exist.")],
    as_json: AsJson = False,
) -> None:
    """Write a private key for a tunnel to a new file, and print its public key.

    Only the owner of the file may read it. The public key is for the peers.
    """
    public = gateway.make_key(file)
    if as_json:
        print_json({"private_key": str(file), "public_key": public})
    else:
        print(public)


@gateway_app.command(epilog=examples_text("bentpipe gateway reload", "bentpipe gateway reload sat"))
def reload(name: Name = None) -> None:
    """Read the configuration of a gateway again, and change the running one.

    A PEP can change which connections it leaves out: those that are open go on as they are. A
    tunnel can change redundancy, titration and the choice of packets, without a lost packet.
    Other changes are refused.
    """
    chosen = _chosen(name)
    record = gateway.GatewayFolder(chosen).record()
    if record is None:
        raise MachineError(_end_text(chosen))
    if (
        name is not None
        and name != chosen
        and Path(name).resolve() != Path(record.config).resolve()
    ):
        raise UsageError(
            f"{name}: gateway {chosen} has {record.config}; to fix it: change that file, or "
            f"bentpipe gateway down {chosen}, then up"
        )
    settings, plan = _read(Path(record.config))
    if settings.name != chosen:
        raise UsageError(f"{record.config}: name: read {settings.name}; the gateway is {chosen}")
    gateway.reload_gateway(settings, plan)
    note(f"gateway {chosen} has the settings of {record.config}")


def _read(path: Path) -> tuple[GatewayConfig, GatePlan]:
    """Return a configuration and its plan; an error of the plan names the file, too."""
    config, document = gateway.read_config(path)
    try:
        return config, gateway.plan_of(config, path)
    except plans.PlanningError as error:
        raise ScenarioError(document.problem(error.path, error.message)) from None


def _chosen(name: str | None) -> str:
    """Return the name of a gateway that was started and not ended.

    Without a name it is the only one that is up, or else the only one of which something is left;
    a note names the others of which something is left.

    Raises:
        UsageError: there is none, or none of that name, or several without a name.
    """
    names = tuple(gateway.gateway_names())
    if name is not None and (name.endswith(_SUFFIX) or "/" in name):
        name = gateway.read_config(Path(name))[0].name
    if not names:
        # Their folder is private.
        others = "" if os.geteuid() == 0 else "; to see those of root, use sudo"
        raise UsageError(f"no gateway is up; start one with bentpipe gateway up CONFIG{others}")
    if name is None:
        return _only(names)
    if name not in names:
        raise UsageError(f"gateway: {choice(name, names)}")
    return name


def _only(names: Sequence[str]) -> str:
    up = [name for name in names if gateway.GatewayFolder(name).is_up()]
    candidates = up or names
    for ended in names:
        if ended not in up and len(names) > 1:
            note(f"{_end_text(ended)}; bentpipe gateway down {ended} removes what is left")
    if len(candidates) > 1:
        how_many = "several are up" if up else "none is up"
        raise UsageError(f"gateway: {how_many}; name one of {', '.join(candidates)}")
    return candidates[0]


def _end_text(name: str) -> str:
    """Return why a gateway is not up that was not ended by `gateway down`."""
    return f"gateway {name} has ended: {gateway.GatewayFolder(name).why_ended()}"


def _status(name: str) -> dict[str, Any]:
    """Return the status of a gateway.

    Raises:
        MachineError: it has ended without `gateway down`.
    """
    folder = gateway.GatewayFolder(name)
    # One that is being started has no record or counters yet.
    counters = (
        gateway.first_counters(folder, lambda: not folder.is_up()) if folder.is_up() else None
    )
    record = folder.record()
    if counters is None or record is None:
        effect = "connections pass without it"
        if record is not None and gateway.closed_networks(record.plan):
            effect = "packets for the networks of its tunnel are refused"
        raise MachineError(
            f"{_end_text(name)}; {effect}; to fix it: bentpipe gateway down {name} removes what is "
            "left, bentpipe gateway up starts it again"
        )
    return {
        **record.described,
        "config": record.config,
        "processes": folder.processes(),
        "started_unix_s": record.started_unix_s,
        "counters": counters,
    }


# --- the unit for systemd -----------------------------------------------------------------------


def _unit_text(config: GatewayConfig, plan: GatePlan, path: Path) -> str:
    """Return the unit of a gateway; ``path`` is the file of its configuration.

    Raises:
        UsageError: a path cannot be written into a unit.
    """
    program = _quoted(Path(sys.executable).with_name("bentpipe"))
    pep, has_tunnel, quoted = plan["pep"], config.tunnel is not None, _quoted(path.absolute())
    # The limit of each process: enough for one worker with all connections.
    files = 0 if pep is None else gateway.open_files(pep["connections"], threads=pep["threads"])
    return _UNIT.read_text().format(
        name=config.name,
        functions=", ".join(config.functions),
        program=program,
        config=quoted,
        after=_TUN_MODULE if has_tunnel else "",
        wants=_TUN_MODULE if has_tunnel else "",
        reload=f"ExecReload={program} gateway reload {quoted}\n",
        after_kill=_KEEPS_CLOSED if gateway.closed_networks(plan) else _removed(program, quoted),
        limits=f"LimitNOFILE={files}\n" if files else "",
        devices=_TUN_DEVICE if has_tunnel else "PrivateDevices=yes\n",
    )


def _removed(program: str, config: str) -> str:
    """Return the lines of a unit that leave nothing of a gateway that was killed."""
    return (
        "# After it was killed, so that no rule is left. Otherwise nothing is left, and this "
        f"fails.\nExecStopPost=-{program} gateway down {config}\n"
    )


def _quoted(path: Path) -> str:
    """Return a path as a word of a command line in a unit (systemd.service(5))."""
    text = str(path)
    if not text.isprintable() or '"' in text or "\\" in text:
        raise UsageError(f"{text}: a unit cannot name such a path; move the file")
    text = text.replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if " " in text else text


# --- the status as text ---------------------------------------------------------------------------

Status = Mapping[str, Any]

# The counters of the daemon by name, with the words of the status.
_COUNTERS: Final = {
    "split_connections": "connections split",
    "unsplit_connections": "passed without the PEP",
    "refused_connections": "refused by the server",
    "expired_connections": "not answered by the server",
    "reset_connections": "reset by a peer",
    "timed_out_connections": "reset after the idle limit",
}
_TUNNEL_COUNTERS: Final = {
    "unroutable_packets": "packets to no peer",
    "too_big_packets": "packets above the MTU",
    "refused_datagrams": "datagrams refused",
    "unsent_datagrams": "datagrams not sent",
}
# The daemon writes its counters every 0.75 s.
_UNCHANGED_S: Final = 2.0
# It writes them every 1.8 s also while workers are missing.
_SILENT_S: Final = 4.0
_BILLION: Final = 10**9
_MILLION: Final = 10**6
_LISTS: Final = {"except": "left out", "only": "only split"}
# Of 80 columns, those beside the names of rows.
_ROOM: Final = 52
_LEGS: Final = {"lan": "legs to the hosts", "link": "legs over the link"}


def action_text(description: Mapping[str, Any]) -> str:
    """Return what a gateway does, as the predicate of a sentence."""
    parts = []
    if "lan" in description:
        lan, link = ", ".join(description["lan"]), ", ".join(description["link"])
        most = f"{description['connections']:,} TCP connections"
        parts.append(f"splits at most {most} between {lan} and {link}")
    if "device" in description:
        parts.append(
            f"carries packets of {description['device']} to {', '.join(description['peers'])}"
        )
    return " and ".join(parts)


def status_lines(status: Status) -> list[str]:
    """Return the status of a gateway."""
    counters, running = status["counters"], up_for(status["started_unix_s"])
    age_s = max(time.time() - counters["unix_s"], 0)
    ends = []
    if "lan" in status:
        ends.append(f"{', '.join(status['lan'])} to {', '.join(status['link'])}")
    if "device" in status:
        ends.append(f"{status['device']} to {counted(len(status['peers']), 'peer')}")
    functions = ", ".join(status["functions"])
    title = f"{status['name']}: {functions}, {', '.join(ends)}, {running}"
    lines = [f"{title}; counters as of {age_s:.1f} s ago"]
    if "lan" in status:
        lines += _splitting_lines(counters.get("pep_workers") or {}, age_s)
        lines += _selection_lines(status)
        lines += _pep_lines(counters.get("pep") or {}, status["connections"])
    if "device" in status:
        lines += _tunnel_lines(counters.get("tunnel") or {})
    return lines


def _lines(rows: Mapping[str, str]) -> list[str]:
    return [f"{name:28}{text}" for name, text in rows.items()]


def _selection_lines(status: Status) -> list[str]:
    """Return which connections are not split, as far as a line has room: JSON has all."""
    rows = {
        f"{text}, {kind}": ", ".join(map(str, entries))
        for name, text in _LISTS.items()
        for kind, entries in status.get(name, {}).items()
        if entries
    }
    fitting = {
        name: text if len(text) <= _ROOM else f"{text.count(',') + 1} entries"
        for name, text in rows.items()
    }
    return _lines(fitting)


def _splitting_lines(workers: Mapping[str, Any], age_s: float) -> list[str]:
    """Return what keeps new connections from being split, and how often a worker was replaced."""
    rows = {}
    if age_s >= _SILENT_S:
        rows["new connections"] = f"unknown: no counters for {age_s:.0f} s"
    elif not workers.get("is_splitting", True):
        missing = workers["missing"]
        reason = f"{counted(missing, 'worker')} missing" if missing else "no rules in force"
        rows["new connections"] = f"pass without the PEP: {reason}"
    if failures := workers.get("failures"):
        rows["workers replaced"] = f"{failures:,}"
    return _lines(rows)


def _pep_lines(counters: Mapping[str, Any], most: int) -> list[str]:
    counts = {text: f"{counters[name]:,}" for name, text in _COUNTERS.items() if name in counters}
    return _lines(
        {
            "open connections": f"{counters.get('open_connections', 0):,} of {most:,}",
            **counts,
            "to servers": format_size(counters.get("to_server_bytes", 0)),
            "to clients": format_size(counters.get("to_client_bytes", 0)),
            **{text: _leg_text(counters[leg]) for leg, text in _LEGS.items() if leg in counters},
        }
    )


def _leg_text(leg: Mapping[str, Any]) -> str:
    samples = sum(leg["rtt_counts"])
    rtt = format_duration(leg["rtt_sum_us"] * 1_000 / samples) if samples else "not measured"
    return f"mean RTT {rtt}, {counted(leg['retransmitted_segments'], 'segment')} retransmitted"


def _tunnel_lines(counters: Mapping[str, Any]) -> list[str]:
    peers = [line for peer in counters.get("peers", []) for line in _peer_lines(peer)]
    counts = {text: counters.get(name) for name, text in _TUNNEL_COUNTERS.items()}
    return [*peers, *_lines({text: f"{count:,}" for text, count in counts.items() if count})]


def _peer_lines(peer: Mapping[str, Any]) -> list[str]:
    endpoint = peer["endpoint"] or "no address yet"
    # By the second: it is of no use to know it better.
    age_ns = peer["session_age_ns"]
    age = None if age_ns is None else age_ns // NS_PER_S * NS_PER_S
    session = "no session" if age is None else f"session of {format_duration(age)}"
    outdated = peer["outdated_handshakes"]
    refused = f"{counted(outdated, 'handshake')} with an old timestamp: its clock went back?"
    rows = {
        f"peer {peer['name']}": f"{endpoint}, {session}",
        **({"  refused": refused} if outdated else {}),
        "  sent": _carried(peer, "sent"),
        "  received": _carried(peer, "received"),
        "  dropped": f"{peer['dropped_packets']:,} packets without a session, "
        f"{peer['refused_packets']:,} refused",
        "  loss before decoding": f"{peer['loss_ppb'] * 100 / _BILLION:.2f} % on the way there",
        "  recovered here": f"{peer['sources_recovered']:,} of "
        f"{peer['sources_recovered'] + peer['sources_lost']:,} lost symbols",
        "  redundancy": f"{peer['redundancy_ppm'] * 100 / _MILLION:.1f} %, "
        f"{peer['repairs_sent']:,} repair symbols",
    }
    return _lines(rows)


def _carried(peer: Mapping[str, Any], direction: str) -> str:
    packets, size = peer[f"{direction}_packets"], peer[f"{direction}_bytes"]
    return f"{packets:,} packets, {format_size(size)}"


def totals_lines(counters: Mapping[str, Any]) -> list[str]:
    """Return what a gateway has carried, in one line for each function."""
    lines = []
    pep, tunnel = counters.get("pep"), counters.get("tunnel")
    if pep:
        bytes_ = [format_size(pep.get(f"to_{end}_bytes", 0)) for end in ("server", "client")]
        connections = counted(pep.get("split_connections", 0), "connection")
        lines.append(f"{connections}, {bytes_[0]} to servers, {bytes_[1]} to clients")
    if tunnel:
        sent, received = (
            format_size(sum(peer[f"{name}_bytes"] for peer in tunnel["peers"]))
            for name in ("sent", "received")
        )
        lines.append(f"{sent} to peers, {received} from peers")
    return lines


class Rates:
    """The rates between two statuses."""

    def __init__(self) -> None:
        self._counters: Mapping[str, Any] = {}
        self._at_s = 0.0
        self._lines: list[str] = []

    def status_lines(self, status: Status) -> list[str]:
        """Return a status, and the rates since the last time that the counters have changed."""
        return [*status_lines(status), *self._rates(status["counters"])]

    def _rates(self, counters: Mapping[str, Any]) -> list[str]:
        now_s = time.monotonic()
        if counters == self._counters and now_s - self._at_s < _UNCHANGED_S:
            return self._lines
        before, elapsed_s = _totals(self._counters), now_s - self._at_s
        self._counters, self._at_s = counters, now_s
        self._lines = [
            f"{label:28}"
            + ", ".join(
                f"{format_rate(max(8 * (bytes_ - was) / elapsed_s, 0))} {word}"
                for (word, bytes_), was in zip(now.items(), before[label].values(), strict=True)
            )
            for label, now in _totals(counters).items()
            if label in before
        ]
        return self._lines


def _totals(counters: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the bytes that were carried by direction, by the label of their line."""
    totals = {}
    pep = counters.get("pep")
    if pep:
        totals["now"] = {
            "to servers": pep.get("to_server_bytes", 0),
            "to clients": pep.get("to_client_bytes", 0),
        }
    for peer in (counters.get("tunnel") or {}).get("peers", []):
        label = f"now, {peer['name']}"
        totals[label] = {"sent": peer["sent_bytes"], "received": peer["received_bytes"]}
    return totals
