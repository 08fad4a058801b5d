//! The way from a lab to the outside: from the island over the link into the world, and from there to a
//! user-space NAT, which is another program's and makes the interface that it needs in the world.

use std::net::Ipv4Addr;

use bentpipe_core::packet::Address;
use bentpipe_sim::Side;
use bentpipe_sys::netns::{bind_mount_text, set_sysctl};
use bentpipe_sys::route;

use crate::error::LabError;
use crate::lab::{INTERFACE, Lab};

/// Where the NAT answers questions for names; slirp4netns(1).
const RESOLVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);

/// Prepares a lab for a NAT whose interface is then made in the world: the world forwards, and answers
/// for the other hosts on all interfaces that are yet to be made; their way to everywhere leads to it; all
/// ask the NAT for names.
///
/// # Errors
/// What the kernel does not allow.
pub fn lead_outside(lab: &Lab) -> Result<(), LabError> {
    let resolver = format!("nameserver {RESOLVER}\n");
    let failed = |error| LabError::privileged("leading outside", error);
    let world = Address::from(Side::World);
    for (number, host) in (0..).map(Address).zip(lab.hosts()) {
        lab.namespace(number).run(|| {
            bind_mount_text("/etc/resolv.conf", &resolver).map_err(failed)?;
            // A gateway leads packets towards the world as it is.
            if number == world || host.is_gateway {
                return Ok(());
            }
            route::add(Ipv4Addr::UNSPECIFIED, 0, INTERFACE).map_err(failed)
        })?;
    }
    lab.namespace(world).run(|| {
        let forward = set_sysctl("net.ipv4.ip_forward", "1");
        forward.and_then(|()| set_sysctl("net.ipv4.conf.default.proxy_arp", "1")).map_err(failed)
    })
}
