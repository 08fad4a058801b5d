//! Names, networks, addresses, ports, keys and users, as a configuration writes them.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use ring::digest::{SHA256, digest};
use toml::Value;

use super::reader::Read;
use super::wording::{shown, shown_text};
use crate::network::Network;
use crate::tunnel::{KeyError, PublicKey};

const KEY_CHARACTERS: usize = 48;
const NAME_MAX: usize = 32;
const HOST_MAX: usize = 254;

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    /// Its number.
    pub(super) user: u32,
    /// That of its group.
    pub(super) group: u32,
}

fn is_named(text: &str, others: &[u8]) -> bool {
    let begins = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || others.contains(&byte);
    begins && text.len() <= NAME_MAX && text.bytes().all(is_allowed)
}

/// Reads a text that fulfils a condition; `expected` is the end of the message about another one.
fn matching(value: &Value, expected: &str, is_right: impl Fn(&str) -> bool) -> Read<String> {
    let text = super::reader::text(value)?;
    if is_right(&text) { Ok(text) } else { Err(format!("read {}; {expected}", shown_text(&text))) }
}

/// The name of a gateway: part of that of a table of nftables, and of a folder.
pub(super) fn name(value: &Value) -> Read<String> {
    let expected =
        r#"allowed are up to 32 letters, digits, "-" and "_", the first a letter or a digit"#;
    matching(value, expected, |text| is_named(text, b"_-"))
}

/// The name of a peer: a label of metrics.
pub(super) fn peer_name(value: &Value) -> Read<String> {
    let expected =
        r#"allowed are up to 32 letters, digits, "-", "_" and ".", the first a letter or a digit"#;
    matching(value, expected, |text| is_named(text, b"_.-"))
}

/// The name of an interface. Linux allows more characters, quotes among them.
pub(super) fn interface(value: &Value) -> Read<String> {
    matching(value, "expected the name of an interface, such as eth0", |text| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.@+-".contains(&byte);
        let begins = text.bytes().next().is_some_and(|byte| !b"@+-".contains(&byte));
        begins && text.len() < 16 && ![".", ".."].contains(&text) && text.bytes().all(is_allowed)
    })
}

/// The host and the port of `host:port`, without brackets.
pub(super) fn split_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if bare.is_some() != host.contains(':') || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let port = port.parse().ok().filter(|port| *port > 0)?;
    Some((bare.unwrap_or(host), port))
}

/// An address of the loopback interface with a port.
pub(super) fn loopback(value: &Value) -> Read<String> {
    let expected = "expected a loopback address with a port, such as \"127.0.0.1:9464\" or \
                    \"[::1]:9464\"; a proxy can pass it on to others";
    matching(value, expected, |text| {
        split_port(text).is_some()
            && text.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
    })
}

/// A name or an address with a port.
pub(super) fn endpoint(value: &Value) -> Read<String> {
    let expected = "expected a name or an address with a port, such as \"hub.example.org:51871\", \
                    \"192.0.2.1:51871\" or \"[2001:db8::1]:51871\"";
    matching(value, expected, |text| {
        split_port(text).is_some_and(|(host, _)| is_host(host) || host.parse::<IpAddr>().is_ok())
    })
}

fn is_host(text: &str) -> bool {
    let is_edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    let (first, last) = (text.bytes().next(), text.bytes().last());
    is_edge(first) && is_edge(last) && text.len() <= HOST_MAX && text.bytes().all(is_allowed)
}

/// Where a tunnel listens: a port, or an address with it.
pub(super) fn listen(value: &Value) -> Read<(Option<IpAddr>, u16)> {
    let port = |number: i64| u16::try_from(number).ok().filter(|port| *port > 0);
    let read = match value {
        Value::String(text) => split_port(text)
            .and_then(|(host, port)| Some((Some(host.parse::<IpAddr>().ok()?), port))),
        Value::Integer(number) => port(*number).map(|port| (None, port)),
        _ => None,
    };
    read.ok_or_else(|| {
        format!(
            "read {}; expected a port from 1 to 65535, or an address with one, such as \"192.0.2.1:51871\"",
            shown(value)
        )
    })
}

/// The first and the last port of a port or a range of ports.
pub(super) fn ports(value: &Value) -> Read<[u16; 2]> {
    let number = |text: &str| {
        let is_short = (1..=5).contains(&text.len());
        let is_number = is_short && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { text.parse::<u16>().ok() } else { None }
    };
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some([number(first)?, number(last)?])
    };
    let read = match value {
        Value::String(text) => range(text),
        Value::Integer(port) => range(&port.to_string()),
        _ => None,
    };
    read.filter(|[first, last]| *first > 0 && first <= last).ok_or_else(|| {
        format!(
            "read {}; expected a port from 1 to 65535, or a range of them, such as \"8000-8099\"",
            shown(value)
        )
    })
}

/// The address and the prefix of `address/prefix`, `address/mask` or an address alone.
fn address_with_prefix(text: &str) -> Option<Network> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let prefix = match length {
        None => bits,
        Some(length) if length.bytes().all(|byte| byte.is_ascii_digit()) => length.parse().ok()?,
        Some(mask) if address.is_ipv4() => {
            let IpAddr::V4(mask) = mask.parse().ok()? else { return None };
            prefix_of(mask.to_bits())?
        }
        Some(_) => return None,
    };
    (prefix <= bits).then_some(Network { address, prefix })
}

/// The length of the prefix of a mask, or of a host mask such as 0.0.0.255.
fn prefix_of(mask: u32) -> Option<u8> {
    let is_mask = |mask: u32| mask.leading_ones() + mask.trailing_zeros() >= 32;
    if is_mask(mask) {
        Some(mask.leading_ones() as u8)
    } else if is_mask(!mask) {
        Some(mask.leading_zeros() as u8)
    } else {
        None
    }
}

/// A network with zeros after its prefix.
pub(super) fn network(value: &Value) -> Read<Network> {
    let text = super::reader::text(value)?;
    let read = address_with_prefix(&text);
    if let Some(network) = read.filter(|network| network.first() == network.address) {
        return Ok(network);
    }
    let written = shown_text(&text);
    Err(read.map_or_else(
        || format!("read {written}; expected a network, such as \"10.1.0.0/16\""),
        |network| {
            let first = Network { address: network.first(), ..network };
            format!(
                "read {written}; expected a network, whose host bits are zero; did you mean \"{first}\"?"
            )
        },
    ))
}

/// An address with the length of its prefix.
pub(super) fn interface_address(value: &Value) -> Read<Network> {
    let text = super::reader::text(value)?;
    address_with_prefix(&text).ok_or_else(|| {
        format!(
            "read {}; expected an address with the length of its prefix, such as \"10.99.0.1/24\"",
            shown_text(&text)
        )
    })
}

/// A public key.
pub(super) fn public_key(value: &Value) -> Read<String> {
    let text = super::reader::text(value)?;
    let characters = text.chars().count();
    let message = match PublicKey::parse(&text) {
        Ok(_) if characters == KEY_CHARACTERS => return Ok(text),
        // It is not shown: it is a secret.
        Err(KeyError::Kind) => {
            "read a private key; expected the public key that keygen printed".to_owned()
        }
        Err(KeyError::Checksum) => {
            let read = shown_text(&text);
            format!("read {read}; its checksum is wrong: a character differs")
        }
        Err(KeyError::Character) if characters == KEY_CHARACTERS => format!(
            "read another character than letters, digits, + and /; expected the {KEY_CHARACTERS} that \
             keygen printed"
        ),
        _ => format!(
            "read a text of {characters} characters; expected the {KEY_CHARACTERS} letters, digits, + \
             and / that keygen printed"
        ),
    };
    Err(message)
}

/// A public key that is valid, and whose private key nobody has: a hash is the point.
pub fn placeholder_key(name: &str) -> PublicKey {
    let hash = digest(&SHA256, format!("bentpipe placeholder {name}").as_bytes());
    PublicKey::from_bytes(std::array::from_fn(|index| hash.as_ref()[index]))
}

/// The user as whom traffic is carried.
pub(super) fn user(value: &Value) -> Read<User> {
    let name = super::reader::text(value)?;
    let read = shown_text(&name);
    match find_user(&name) {
        None => Err(format!("read {read}; this machine has no such user")),
        Some(User { user: 0, .. }) => {
            Err(format!("read {read}; must be a user without privileges"))
        }
        Some(user) => Ok(user),
    }
}

/// Looks a user up in `/etc/passwd`, then in other databases (nsswitch.conf(5)), which getent(1) reads.
pub(super) fn find_user(name: &str) -> Option<User> {
    if name.is_empty() || name.starts_with('-') || name.contains([':', '\n', '\0']) {
        return None;
    }
    let find = |entries: &str| {
        let mut fields = entries.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let entry = fields.find(|fields| fields.first() == Some(&name))?;
        Some(User { user: entry.get(2)?.parse().ok()?, group: entry.get(3)?.parse().ok()? })
    };
    let file = fs::read_to_string("/etc/passwd").unwrap_or_default();
    find(&file).or_else(|| {
        let done = Command::new("getent").args(["passwd", name]).output().ok()?;
        find(&String::from_utf8_lossy(&done.stdout))
    })
}
