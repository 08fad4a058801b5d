//! Users of web pages in a plan.

use serde::{Deserialize, Serialize};

use super::{BYTES_MAX, Check, Draw, TIME_NS_MAX, Tcp};

/// A user who loads pages, one after the other. The flow's direction is that of the responses.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WebPage {
    /// The number of pages; `null` for no limit.
    pub pages: Option<u64>,
    /// Nanoseconds from the end of a page to the next click.
    pub think_ns: Draw,
    /// The number of objects of a page, beside the document.
    pub objects: Draw,
    /// Bytes of the document.
    pub document_bytes: Draw,
    /// Bytes of an object.
    pub object_bytes: Draw,
    /// Bytes of a request.
    pub request_bytes: u64,
    /// The version of HTTP.
    pub http: Http,
    /// The most connections at a time with HTTP/1.1.
    pub connections: u32,
    /// The version of TLS; `null` for none.
    pub tls: Option<Tls>,
    /// Whether each page begins with a DNS lookup.
    pub dns: bool,
    /// The TCP of the server.
    pub server: Box<Tcp>,
    /// The TCP of the client.
    pub client: Box<Tcp>,
}

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Http {
    /// HTTP/1.1 (RFC 9112).
    #[serde(rename = "1.1")]
    One,
    /// HTTP/2 (RFC 9113).
    #[serde(rename = "2")]
    Two,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Tls {
    /// TLS 1.2 (RFC 5246).
    #[serde(rename = "1.2")]
    V1_2,
    /// TLS 1.3 (RFC 8446).
    #[serde(rename = "1.3")]
    V1_3,
}

/// More than any page has, and a client keeps the state of every request.
const OBJECTS_MAX: u64 = 10_000;
/// As many as browsers open to all servers together.
const CONNECTIONS_MAX: u64 = 256;

impl WebPage {
    /// The most connections that are open at a time.
    pub(crate) fn connections_max(&self) -> u32 {
        match self.http {
            Http::One => self.connections,
            Http::Two => 1,
        }
    }

    pub(super) fn check(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        let Self { pages, request_bytes, connections, server, client, .. } = self;
        check.that(*pages != Some(0), || at("pages"), "must be at least 1, or null for no limit");
        self.think_ns.check(check, 0..=TIME_NS_MAX, &|field| at(&format!("think_ns.{field}")));
        self.objects.check(check, 0..=OBJECTS_MAX, &|field| at(&format!("objects.{field}")));
        for (name, draw) in
            [("document_bytes", &self.document_bytes), ("object_bytes", &self.object_bytes)]
        {
            draw.check(check, 1..=BYTES_MAX, &|field| at(&format!("{name}.{field}")));
        }
        check.within(*request_bytes, 1..=BYTES_MAX, || at("request_bytes"));
        check.within(u64::from(*connections), 1..=CONNECTIONS_MAX, || at("connections"));
        server.check(check, &|field| at(&format!("server.{field}")));
        client.check(check, &|field| at(&format!("client.{field}")));
    }
}
