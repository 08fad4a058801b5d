//! The worker of the tunnel.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;

use bentpipe_core::time::Duration;
use bentpipe_sys::clock::Clock;

use super::confine::{TUNNEL_CALLS, drop_privileges, filter_system_calls};
use super::metrics_server::{Latest, serve};
use super::report::{ToWorker, WorkerReport};
use super::reporting::report_until_gone;
use super::usage::{Usage, cpu_ns};
use super::{TunnelPeerReport, TunnelPlan, TunnelReport};
use crate::tunnel::forwarder::Forwarder;
use crate::tunnel::path::{PathCounters, PathPlan, PeerPlan, PeerReport};
use crate::tunnel::{Limits, OsRandom, PeerSettings, PrivateKey, PublicKey};

/// Forwards packets until the privileged part is gone.
///
/// Its descriptors are the device and the socket.
pub(super) fn forward(
    ids: [u32; 2],
    (tunnel, endpoints, mtu): (&TunnelPlan, &[Option<SocketAddr>], u16),
    (metrics, descriptors): (Option<OwnedFd>, Vec<OwnedFd>),
    control: &OwnedFd,
) -> io::Result<()> {
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| io::Error::other("a descriptor is missing"));
    let (device, socket) = (next()?, UdpSocket::from(next()?));
    let path = PathPlan {
        // Only the privileged part, and this one until the next line, may read it.
        private_key: PrivateKey::read(Path::new(&tunnel.private_key))?,
        peers: peers(tunnel, endpoints)?,
        settings: tunnel.settings.clone(),
        mtu,
        limits: Limits::DEFAULT,
    };
    drop_privileges(ids)?;
    let usage = Usage::open()?;
    let forwarder = Forwarder::start(device, socket, path, Box::new(OsRandom::new()))?;
    let latest = Latest::default();
    if let Some(listener) = metrics {
        serve(listener, &latest, None)?;
    }
    filter_system_calls(TUNNEL_CALLS)?;
    let clock = Clock::start();
    let report = || {
        forwarder
            .failure()
            .map_or_else(|| Ok(WorkerReport::Tunnel(report(&forwarder, mtu, &usage))), Err)
    };
    report_until_gone(
        control,
        || clock.now(),
        report,
        |message, _| match message {
            ToWorker::State(message) => latest.set(*message.state),
            // They were checked when they were parsed.
            ToWorker::Settings(settings) => {
                let _ = forwarder.reconfigure(&settings);
            }
        },
    )
}

fn peers(tunnel: &TunnelPlan, endpoints: &[Option<SocketAddr>]) -> io::Result<Vec<PeerPlan>> {
    let plans = tunnel.peers.iter().zip(endpoints).map(|(peer, &endpoint)| {
        let public_key = PublicKey::parse(&peer.public_key).map_err(io::Error::other)?;
        let keepalive = peer.keepalive_ns.map(Duration::from_nanos);
        Ok(PeerPlan {
            name: peer.name.clone(),
            settings: PeerSettings { public_key, endpoint, keepalive },
            networks: peer.networks.iter().map(|each| (each.address, each.prefix)).collect(),
        })
    });
    plans.collect()
}

fn report(forwarder: &Forwarder, mtu: u16, usage: &Usage) -> TunnelReport {
    let counters = forwarder.counters();
    let hosts = counters.path.hosts;
    TunnelReport {
        memory_bytes: usage.resident_bytes(),
        cpu_ns: cpu_ns(),
        mtu_bytes: mtu.into(),
        refused_datagrams: counters.path.sessions.refused_datagrams,
        unsent_datagrams: counters.io.unsent_datagrams,
        unroutable_packets: hosts.dropped_no_route,
        malformed_packets: hosts.dropped_malformed + counters.io.unsegmented_packets,
        too_big_packets: hosts.dropped_too_big,
        queue_bytes: counters.path.queue_bytes,
        statistics: statistics(&counters.path),
        peers: counters.path.peers.iter().map(of_peer).collect(),
    }
}

/// As `statistics` of the engine of the core crate; an estimate of the titrator stands for the bytes of repair.
fn statistics(path: &PathCounters) -> BTreeMap<String, u64> {
    let PathCounters { traffic, code, repair, order, .. } = path;
    let named = [
        ("sources_sent_packets", code.sources_sent),
        ("uncoded_packets", traffic.uncoded.packets),
        ("uncoded_bytes", traffic.uncoded.bytes),
        ("repairs_sent_packets", code.repairs_sent),
        ("repairs_sent_bytes", repair.released.bytes),
        ("feedback_sent_packets", code.feedback_sent),
        ("sources_received_packets", code.sources_received),
        ("sources_lost_packets", code.recovered + code.given_up + code.missing),
        ("recovered_packets", code.recovered),
        ("given_up_packets", code.given_up),
        ("missing_packets", code.missing),
        ("duplicate_packets", code.sources_redundant),
        ("repairs_received_packets", code.repairs_received),
        ("repairs_innovative_packets", code.repairs_innovative),
        ("feedback_received_packets", code.feedback_received),
        ("titrator_released_packets", repair.released.packets),
        ("titrator_released_bytes", repair.released.bytes),
        ("titrator_expired_packets", repair.expired.packets),
        ("titrator_expired_bytes", repair.expired.bytes),
        ("titrator_obsolete_packets", repair.obsolete.packets),
        ("titrator_obsolete_bytes", repair.obsolete.bytes),
        ("titrator_overflowed_packets", repair.overflowed.packets),
        ("titrator_overflowed_bytes", repair.overflowed.bytes),
        ("titrator_outdated_packets", repair.outdated),
        ("marked_packets", traffic.marked_packets),
        ("withheld_packets", traffic.withheld_packets),
        ("order_waited_packets", order.waited_packets),
        ("order_wait_sum_ns", order.wait_sum_ns),
        ("order_wait_max_ns", order.wait_max_ns),
        ("order_late_packets", order.late_packets),
        ("order_skipped_packets", order.skipped_packets),
    ];
    named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn of_peer(peer: &PeerReport) -> TunnelPeerReport {
    let (traffic, code) = (&peer.traffic, &peer.code);
    TunnelPeerReport {
        name: peer.name.clone(),
        endpoint: peer.endpoint.map(|endpoint| endpoint.to_string()),
        session_age_ns: peer.session_age_ns,
        outdated_handshakes: peer.outdated_handshakes,
        sent_packets: traffic.coded.packets + traffic.uncoded.packets,
        sent_bytes: traffic.coded.bytes + traffic.uncoded.bytes,
        received_packets: traffic.to_hosts.packets,
        received_bytes: traffic.to_hosts.bytes,
        sent_datagram_bytes: traffic.datagrams_sent.bytes,
        received_datagram_bytes: traffic.datagrams_received.bytes,
        ce_datagrams: traffic.ce_datagrams,
        unmarked_packets: traffic.unmarked_packets,
        dropped_packets: traffic.dropped_no_session + traffic.unsealed_datagrams,
        refused_packets: traffic.refused_sources
            + traffic.refused_packets
            + traffic.refused_messages,
        sources_sent: code.sources_sent,
        repairs_sent: code.repairs_sent,
        sources_received: code.sources_received,
        repairs_received: code.repairs_received,
        sources_recovered: code.recovered,
        sources_lost: code.given_up,
        restarts: code.restarts,
        redundancy_ppm: peer.redundancy_ppm,
        loss_ppb: peer.loss_ppb,
    }
}
