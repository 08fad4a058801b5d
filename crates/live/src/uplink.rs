//! The uplink of a lab: from the island over the link to the world, and from there through a
//! user-space NAT to the Internet. The NAT is another program, which creates its interface in the
//! world.

use std::net::Ipv4Addr;

use bentpipe_core::packet::Address;
use bentpipe_sim::Side;
use bentpipe_sys::netns::bind_mount_text;
use bentpipe_sys::route;
use bentpipe_sys::sysctl;

use crate::error::LabError;
use crate::lab::{INTERFACE, Lab};

/// The NAT's DNS forwarder; slirp4netns(1).
const RESOLVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);

/// Prepares a lab for a NAT that creates its interface in the world. The world forwards packets and
/// answers ARP requests for the other hosts (`proxy_arp`) on interfaces created from now on; the
/// other hosts get a default route to the link, and all hosts use the NAT's name server.
///
/// # Errors
/// The kernel's error, with a fix.
pub fn enable_internet(lab: &Lab) -> Result<(), LabError> {
    let resolver = format!("nameserver {RESOLVER}\n");
    let failed = |error| LabError::privileged("setting up the uplink", error);
    let world = Address::from(Side::World);
    for (number, host) in (0..).map(Address).zip(lab.hosts()) {
        lab.namespace(number).run(|| {
            bind_mount_text("/etc/resolv.conf", &resolver).map_err(failed)?;
            // A gateway has a default route towards the world already.
            if number == world || host.is_gateway {
                return Ok(());
            }
            route::add(Ipv4Addr::UNSPECIFIED, 0, INTERFACE).map_err(failed)
        })?;
    }
    lab.namespace(world).run(|| {
        let forward = sysctl::set("net.ipv4.ip_forward", "1");
        forward.and_then(|()| sysctl::set("net.ipv4.conf.default.proxy_arp", "1")).map_err(failed)
    })
}
