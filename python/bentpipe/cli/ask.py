"""The verb ``ask``: common questions, each answered with the runs behind it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import typer

from bentpipe import answers
from bentpipe.cli.answering import duration, integers, show_answer
from bentpipe.cli.ask_options import LinkName, Report, Seeds, Set
from bentpipe.cli.lazy import LazyGroup, examples_text
from bentpipe.cli.options import AsJson, fraction

_EXAMPLES: Final = (
    "bentpipe ask tcp --link geo",
    "bentpipe ask buffer --link geo --report buffer.html",
)

ask_app = typer.Typer(
    cls=LazyGroup,
    help="Answer a common question about a link, with the reason.",
    epilog=examples_text(*_EXAMPLES),
    rich_markup_mode=None,
    callback=lambda: None,
)

_Direction = Annotated[
    Literal["forward", "return"], typer.Option(help="The direction of the data.")
]
_CongestionControl = Annotated[
    Literal["cubic", "bbr", "reno", "newreno", "hybla", "vegas", "westwood"],
    typer.Option(help="The congestion control of the senders."),
]
_Emulate = Annotated[
    bool,
    typer.Option(
        "--emulate", help="Then run the case in real time, with the kernel's TCP, and compare."
    ),
]


@ask_app.command(
    "tcp",
    short_help="What one TCP connection gets, and what helps most.",
    epilog=examples_text(
        "bentpipe ask tcp --link geo",
        "bentpipe ask tcp --link geo --set traffic.transfer.tcp.receive_buffer=64kB",
    ),
)
def tcp(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    link: LinkName = "geo",
    settings: Set = None,
    direction: _Direction = "forward",
    congestion_control: _CongestionControl = "cubic",
    seeds: Seeds = None,
    report: Report = None,
    emulate: _Emulate = False,
    as_json: AsJson = False,
) -> None:
    """Answer what one TCP connection gets on a link, and which one setting helps most."""
    show_answer(
        lambda experiment: answers.tcp(
            link,
            settings=settings or (),
            direction=direction,
            congestion_control=congestion_control,
            experiment=experiment,
        ),
        seeds=seeds,
        report=report,
        emulate=emulate,
        as_json=as_json,
    )


@ask_app.command(
    "buffer",
    short_help="How large the queue should be.",
    epilog=examples_text(
        "bentpipe ask buffer --link geo",
        "bentpipe ask buffer --link geo --flows 16 --report buffer.html",
    ),
)
def buffer(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    link: LinkName = "geo",
    settings: Set = None,
    direction: _Direction = "forward",
    flows: Annotated[
        int, typer.Option(metavar="N", min=1, max=500, help="TCP transfers at the same time.")
    ] = 4,
    congestion_control: _CongestionControl = "cubic",
    seeds: Seeds = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Answer how large the queue of a direction should be, in bytes, milliseconds and BDP.

    It carries TCP transfers and a G.711 call. The answer is the knee: the smallest queue with 98 %
    of the best goodput, with the delay and the speech quality that it costs.
    """
    show_answer(
        lambda experiment: answers.buffer(
            link,
            settings=settings or (),
            direction=direction,
            flows=flows,
            congestion_control=congestion_control,
            experiment=experiment,
        ),
        seeds=seeds,
        report=report,
        as_json=as_json,
    )


@ask_app.command(
    "complaint",
    short_help="Why a link at 60 % average is felt as full.",
    epilog=examples_text(
        "bentpipe ask complaint --link geo",
        "bentpipe ask complaint --average 30% --report complaint.html",
    ),
)
def complaint(
    link: LinkName = "geo",
    settings: Set = None,
    average: Annotated[
        str, typer.Option(metavar="PERCENT", help="The average of 5 minutes, of the link rate.")
    ] = "60%",
    seeds: Seeds = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Answer why a link is felt as full: windows of 100 ms beside the average of 5 minutes."""
    share = fraction(average, "--average")
    show_answer(
        lambda experiment: answers.complaint(
            link, settings=settings or (), average=share, experiment=experiment
        ),
        seeds=seeds,
        report=report,
        as_json=as_json,
    )


@ask_app.command(
    "users",
    short_help="How many users of web pages fit.",
    epilog=examples_text(
        "bentpipe ask users --link geo", "bentpipe ask users --link geo --page-time 5s"
    ),
)
def users(
    link: LinkName = "geo",
    settings: Set = None,
    page_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="What 95 % of pages may take. [default: 10s, or twice as long as for one user]",
        ),
    ] = None,
    seeds: Seeds = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Answer how many users fit, in all and per Mbit/s, if 95 % of pages load in time."""
    page_time_ns = None if page_time is None else duration(page_time, "--page-time")
    show_answer(
        lambda experiment: answers.users(
            link, settings=settings or (), page_time_ns=page_time_ns, experiment=experiment
        ),
        seeds=seeds or 3,
        report=report,
        as_json=as_json,
    )


@ask_app.command(
    "small-packets",
    short_help="How many calls a limit in packets per second carries.",
    epilog=examples_text(
        "bentpipe ask small-packets --link leo --pps 6000",
        "bentpipe ask small-packets --link leo --pps 2000 --codec g729",
    ),
)
def small_packets(
    link: LinkName = "leo",
    settings: Set = None,
    pps: Annotated[
        int,
        typer.Option(
            "--pps", metavar="N", min=1, help="Packets per second of each gateway, both ways."
        ),
    ] = 6_000,
    codec: Annotated[
        Literal["g711", "g729", "opus"], typer.Option(help="The codec of the calls.")
    ] = "g711",
    seeds: Seeds = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Answer how many calls a packets-per-second limit carries, with and without aggregation."""
    show_answer(
        lambda experiment: answers.small_packets(
            link,
            settings=settings or (),
            packets_per_second=pps,
            codec=codec,
            experiment=experiment,
        ),
        seeds=seeds or 2,
        report=report,
        as_json=as_json,
    )


@ask_app.command(
    "usable",
    short_help="Whether calls, lectures and images are usable.",
    epilog=examples_text(
        "bentpipe ask usable --link geo",
        "bentpipe ask usable --link isdn-return --video 300kbit/s --downloads 0",
    ),
)
def usable(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    link: LinkName = "geo",
    settings: Set = None,
    video: Annotated[
        str, typer.Option(metavar="RATE", help="The rate of the lecture's media.")
    ] = "1Mbit/s",
    image: Annotated[str, typer.Option(metavar="SIZE", help="The size of an image.")] = "500kB",
    downloads: Annotated[
        int, typer.Option(metavar="N", min=0, max=500, help="TCP downloads at the same time.")
    ] = 1,
    seeds: Seeds = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Answer whether a call, a lecture and remote images are usable on a link."""
    show_answer(
        lambda experiment: answers.usable(
            link,
            settings=settings or (),
            video=video,
            image=image,
            downloads=downloads,
            experiment=experiment,
        ),
        seeds=seeds,
        report=report,
        as_json=as_json,
    )


@ask_app.command(
    "pep",
    short_help="Whether a split-TCP PEP helps, and whom.",
    epilog=examples_text(
        "bentpipe ask pep --link geo --load 50% --quic-share 40%",
        "bentpipe ask pep --link geo --load 90% --terrestrial 20ms --report pep.html",
    ),
)
def pep(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    link: LinkName = "geo",
    settings: Set = None,
    load: Annotated[
        str,
        typer.Option(
            metavar="PERCENT",
            help="How busy users keep the forward direction without a PEP, 0% to 95%.",
        ),
    ] = "50%",
    quic_share: Annotated[
        str,
        typer.Option(
            "--quic-share",
            metavar="PERCENT",
            help="The users, of all, whose traffic a PEP cannot split: QUIC, VPNs.",
        ),
    ] = "40%",
    terrestrial: Annotated[
        str,
        typer.Option(metavar="TIME", help="The round trip between the hub and the servers."),
    ] = "80ms",
    seeds: Seeds = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Answer what a split-TCP PEP at the hub gains for the total, for large and for short flows."""
    shares = fraction(load, "--load"), fraction(quic_share, "--quic-share")
    terrestrial_ns = duration(terrestrial, "--terrestrial")
    show_answer(
        lambda experiment: answers.pep(
            link,
            settings=settings or (),
            load=shares[0],
            quic_share=shares[1],
            terrestrial_ns=terrestrial_ns,
            experiment=experiment,
        ),
        seeds=seeds,
        report=report,
        as_json=as_json,
    )


@ask_app.command(
    "coding",
    short_help="Whether network coding pays, and what it costs.",
    epilog=examples_text(
        "bentpipe ask coding --link geo --queue 120kB",
        "bentpipe ask coding --link geo --load 20 --set link.forward.loss=2%",
    ),
)
def coding(
    link: LinkName = "geo",
    settings: Set = None,
    load: Annotated[
        str,
        typer.Option(
            metavar="N[,N...]",
            help="How many channels, each one download after another, share the link: one to four "
            "numbers.",
        ),
    ] = "0,20,60",
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="LIMIT",
            help="The limit of the forward queue, such as 120kB or 1bdp; by default the link's.",
            show_default=False,
        ),
    ] = None,
    seeds: Seeds = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Answer what network coding and titration give, over a plain link and over a PEP.

    A coded tunnel between the gateways sends repair: 10 % at once, 10 % while the queue has room
    (titrated), or titrated and as much as the loss takes (adaptive). The answer has gains and
    losses with 95 % intervals, costs in link bytes and delay, and the reason.
    """
    loads = integers(load, "--load")
    show_answer(
        lambda experiment: answers.coding(
            link, settings=settings or (), loads=loads, queue=queue, experiment=experiment
        ),
        seeds=seeds,
        report=report,
        as_json=as_json,
    )


@ask_app.command(
    "preset",
    short_help="What delay, jitter and loss to use for an orbit.",
    epilog=examples_text("bentpipe ask preset geo", "bentpipe ask preset leo --json"),
)
def preset(
    orbit: Annotated[
        Literal["geo", "meo", "leo"], typer.Argument(metavar="geo|meo|leo", help="The orbit.")
    ] = "geo",
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Answer what delay, jitter and loss to use for an orbit, with source, range and year."""
    show_answer(lambda _: answers.preset(orbit), report=report, as_json=as_json)
