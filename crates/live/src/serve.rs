//! A web server in a namespace, so that there is something to fetch behind a link.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::error::LabError;
use bentpipe_sys::netns::Namespace;

/// The longest request that is read.
const REQUEST_BYTES_MAX: usize = 8 * 1024;
/// How long a silent connection is kept.
const PATIENCE: Duration = Duration::from_secs(120);
/// So many connections are served at a time at most: more wait, as many as the kernel keeps.
const CONNECTIONS_MAX: u64 = 1_024;
/// How long to wait when the kernel gives no connection, for want of descriptors or memory; accept(2).
const BACK_OFF: Duration = Duration::from_millis(100);
/// What `/` is, and the most that `/bytes/N` gives.
const PAGE_BYTES: u64 = 100_000;
const ANSWER_BYTES_MAX: u64 = 1 << 40;

/// Serves HTTP/1.1 on port 80 of a namespace until the process ends: `/bytes/N` has N zeros, and `/`
/// has 100,000.
///
/// # Errors
/// If the port is taken or there are no threads left.
pub fn start(namespace: &Arc<Namespace>) -> Result<(), LabError> {
    let failed = |error| LabError::machine("serving HTTP", error, "allow more threads or ports");
    let listener =
        namespace.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80)).map_err(failed))?;
    // A socket stays in the namespace in which it was made, whoever uses it.
    let serve = move || {
        let places = Arc::new(Places::new(connections_max()));
        loop {
            let place = Places::take(&places);
            let Ok((connection, _)) = listener.accept() else {
                thread::sleep(BACK_OFF);
                continue;
            };
            let answer = move || {
                // A client that goes away is not our error.
                let _ = converse(connection);
                drop(place);
            };
            let thread = thread::Builder::new().name("bentpipe-http".to_owned());
            if thread.spawn(answer).is_err() {
                // The connection is closed; the machine is to have time to end others.
                thread::sleep(BACK_OFF);
            }
        }
    };
    thread::Builder::new().name("bentpipe-http".to_owned()).spawn(serve).map_err(failed)?;
    Ok(())
}

/// Half of the descriptors are left to the lab and to those who start programs in it.
fn connections_max() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(CONNECTIONS_MAX, |limit| (limit / 2).clamp(1, CONNECTIONS_MAX))
}

/// Where connections are served, of which there are so many.
struct Places {
    free: Mutex<u64>,
    freed: Condvar,
}

/// One of them, until it is dropped.
struct Place(Arc<Places>);

impl Places {
    fn new(free: u64) -> Self {
        Self { free: Mutex::new(free), freed: Condvar::new() }
    }

    /// Waits until there is one.
    fn take(places: &Arc<Self>) -> Place {
        let free = places.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = places.freed.wait_while(free, |free| *free == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        Place(Arc::clone(places))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

fn converse(mut connection: TcpStream) -> io::Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    loop {
        let mut piece = [0; 1024];
        let read = connection.read(&mut piece)?;
        if read == 0 {
            return connection.shutdown(Shutdown::Both);
        }
        request.extend_from_slice(&piece[..read]);
        while let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") {
            answer(&mut connection, &request[..end])?;
            request.drain(..end + 4);
        }
        if request.len() > REQUEST_BYTES_MAX {
            return Ok(());
        }
    }
}

fn answer(connection: &mut TcpStream, request: &[u8]) -> io::Result<()> {
    let (status, bytes) = match wanted(request) {
        Some(bytes) => ("200 OK", bytes),
        None => ("404 Not Found", 0),
    };
    let has_body = !request.starts_with(b"HEAD ");
    write!(
        connection,
        "HTTP/1.1 {status}\r\nContent-Type: application/octet-stream\r\nContent-Length: {bytes}\r\n\r\n"
    )?;
    let zeros = [0; 16 * 1024];
    let mut left = if has_body { bytes } else { 0 };
    while left > 0 {
        let piece = left.min(zeros.len() as u64);
        connection.write_all(&zeros[..piece as usize])?;
        left -= piece;
    }
    Ok(())
}

/// How many bytes a request asks for, if it asks for something that is there.
fn wanted(request: &[u8]) -> Option<u64> {
    let line = request.split(|&byte| byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    if !matches!(method, "GET" | "HEAD") {
        return None;
    }
    match path {
        "/" => Some(PAGE_BYTES),
        path => {
            let bytes = path.strip_prefix("/bytes/")?.parse().ok()?;
            (bytes <= ANSWER_BYTES_MAX).then_some(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_asked_for() {
        assert_eq!(wanted(b"GET / HTTP/1.1\r\nHost: world"), Some(100_000));
        assert_eq!(wanted(b"HEAD /bytes/7 HTTP/1.1"), Some(7));
        for other in ["GET /bytes/", "GET /bytes/-1 HTTP/1.1", "PUT / HTTP/1.1", "GET", ""] {
            assert_eq!(wanted(other.as_bytes()), None, "{other}");
        }
        assert_eq!(wanted(b"GET /bytes/99999999999999 HTTP/1.1"), None, "too much");
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(request: Vec<u8>) {
            wanted(&request);
        }
    }
}
