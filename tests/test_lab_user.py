"""Programs in a lab keep the user's id, name and files, and may do everything to its network."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from conftest import User, needs, needs_lab
from test_lab import wait_until
from test_live import processes

# What the user nobody is.
NOBODY = "65534"
# Prints the ids, the effective capabilities, and the owner of a file that it makes.
WHO = """
id -u; id -g; grep CapEff /proc/self/status | cut -f 2
touch "$TMPDIR/made" && stat -c %u:%g "$TMPDIR/made" && rm "$TMPDIR/made"
"""
# Opens the sockets of tcpdump(8), of ping(8) and of a web server, and creates a device.
NETWORK = """
import socket, subprocess
socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
socket.create_server(("", 81))
subprocess.run(["ip", "link", "set", "dev", "link", "mtu", "1400"], check=True)
open("/proc/sys/net/ipv4/tcp_sack", "w").write("0")
"""
LAB_IN_PYTHON = """
import sys, bentpipe
with bentpipe.Lab("leo") as lab, bentpipe.Lab("geo"):
    print(lab.run("island", ["sh", "-c", sys.argv[1]]).stdout, end="")
"""

pytestmark = [needs_lab, needs("setpriv"), needs("unshare")]


def expected() -> str:
    """What `WHO` prints for the user of the fixture: no capabilities in the lab."""
    user, group = (NOBODY, NOBODY) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    return f"{user}\n{group}\n{0:016x}\n{user}:{group}\n"


def python_of(user: User, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python as the user, not bentpipe."""
    *command, _, _ = user.command
    return replace(user, command=command)(*arguments)


def test_each_way_into_a_lab_keeps_the_user(user: User) -> None:
    """Given exec, its --world, a shell, lab exec and Lab.run, expect the same user in each."""
    ran = user("exec", "--link", "leo", "--", "sh", "-c", WHO)
    assert ran.stdout == expected(), ran.stderr
    ran = user("exec", "--link", "leo", "--world", f"{{ {WHO} }} >&2", "--", "sleep", "0.5")
    assert expected() in ran.stderr
    script = user.folder / "shell"
    script.write_text(f"#!/bin/sh\n{WHO}")
    script.chmod(0o755)
    user.environment["SHELL"] = str(script)
    assert user("exec", "--link", "leo").stdout == expected()
    made = user("lab", "up", "kept", "--link", "leo")
    assert made.returncode == 0, made.stderr
    try:
        ran = user("lab", "exec", "kept", "--", "sh", "-c", WHO)
        assert ran.stdout == expected(), ran.stderr
    finally:
        user("lab", "down", "kept")
    ran = python_of(user, "-c", LAB_IN_PYTHON, WHO)
    assert ran.stdout == expected(), ran.stderr


@needs("ip")
@needs("ping")
def test_the_user_keeps_its_name_and_may_do_everything_to_the_network(user: User) -> None:
    """Expect in a lab what `id` and the shell print outside it.

    Expect a reply to a program in a user namespace of its own, such as that of a browser's sandbox,
    and raw and packet sockets, ports below 1024, changed interfaces and sysctls.
    """
    look = "id -un; id -gn; cd ~ && pwd"
    user.environment["HOME"] = str(user.folder)
    ping = "unshare --map-root-user ping -c 1 world >&2"
    words = f"{look}; {ping} && {user.command[-3]} -c '{NETWORK}'"
    ran = user("exec", "--link", "leo", "--", "sh", "-c", words)
    assert ran.returncode == 0, ran.stderr
    assert "1 received" in ran.stderr
    run = "import os, sys; os.execvp('sh', ['sh', '-c', sys.argv[1]])"
    outside = python_of(user, "-c", run, look)
    assert ran.stdout == outside.stdout, ran.stderr
    assert ran.stdout.count("\n") == 3


def test_the_caller_is_the_same_in_a_lab() -> None:
    """Given whoever runs the tests, root or not, expect the same id."""
    look = ["sh", "-c", "id -u; id -g"]
    command = [sys.executable, "-m", "bentpipe", "exec", "--link", "leo", "--", *look]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    outside = subprocess.run(look, capture_output=True, text=True, check=True)
    assert ran.stdout == outside.stdout, ran.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_user_without_a_name_or_a_home_has_a_lab(user: User) -> None:
    """Given an id that /etc/passwd does not have, and supplementary groups, expect the id."""
    command = [word.replace(NOBODY, "54321") for word in user.command]
    grouped = [word.replace("--clear-groups", "--groups 4,54321") for word in command]
    user.environment["HOME"] = "/nonexistent"
    nameless = replace(user, command=grouped)
    ran = nameless("exec", "--link", "leo", "--", "sh", "-c", "id -u; id -g; whoami")
    assert ran.stdout == "54321\n54321\n", ran.stderr
    # A file of the supplementary group is as readable as outside.
    shared = user.folder / "shared"
    shared.write_text("of the group")
    os.chown(shared, 0, 4)
    shared.chmod(0o040)
    ran = nameless("exec", "--link", "leo", "--", "cat", shared)
    assert ran.stdout == "of the group", ran.stderr


@needs("ping")
def test_a_killed_lab_exec_ends_its_program(user: User) -> None:
    """Given a program with file capabilities, whose parent-death signal execve(2) clears."""
    user.environment["MARK"] = mark = f"bentpipe-user-{os.getpid()}"
    made = user("lab", "up", "kept", "--link", "leo")
    assert made.returncode == 0, made.stderr
    try:
        daemon = processes(mark)
        command = [*user.command, "lab", "exec", "kept", "--", "ping", "-q", "world"]
        with subprocess.Popen(command, env=user.environment, stdout=subprocess.DEVNULL) as running:
            wait_until(lambda: len(processes(mark)) >= len(daemon) + 3, "ping does not start")
            running.kill()
        wait_until(lambda: processes(mark) == daemon, "ping outlived lab exec")
    finally:
        user("lab", "down", "kept")
