//! An HTTP server in a namespace, for downloads over a link.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::error::LabError;
use bentpipe_sys::netns::Namespace;

/// The longest request header that is accepted.
const REQUEST_BYTES_MAX: usize = 8 * 1024;
/// How long an idle connection is kept.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The most connections served at once. More wait in the kernel's listen backlog.
const CONNECTIONS_MAX: u64 = 1_024;
/// The pause after accept(2) fails for lack of file descriptors or memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// The size of `/`, and the largest size of `/bytes/N`.
const PAGE_BYTES: u64 = 100_000;
const RESPONSE_BYTES_MAX: u64 = 1 << 40;

/// Serves HTTP/1.1 on port 80 of a namespace until the process ends: `/bytes/N` is N zeros, `/` is
/// 100,000 zeros.
///
/// # Errors
/// If the port is in use, or no thread can be started.
pub fn start(namespace: &Arc<Namespace>) -> Result<(), LabError> {
    let failed = |error| {
        LabError::machine("starting the HTTP server", error, "free port 80, or allow more threads")
    };
    let listener =
        namespace.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80)).map_err(failed))?;
    // A socket stays in the namespace in which it was created.
    let serve = move || {
        let semaphore = Arc::new(Semaphore::new(connection_limit()));
        loop {
            let permit = Semaphore::acquire(&semaphore);
            let Ok((connection, _)) = listener.accept() else {
                thread::sleep(ACCEPT_BACKOFF);
                continue;
            };
            let handle = move || {
                // A client that disconnects is not an error here.
                let _ = serve_connection(connection);
                drop(permit);
            };
            let thread = thread::Builder::new().name("bentpipe-http".to_owned());
            if thread.spawn(handle).is_err() {
                // The connection is closed. Give others time to end.
                thread::sleep(ACCEPT_BACKOFF);
            }
        }
    };
    thread::Builder::new().name("bentpipe-http".to_owned()).spawn(serve).map_err(failed)?;
    Ok(())
}

/// Leaves half of the file descriptors to the lab and to programs started in it.
fn connection_limit() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(CONNECTIONS_MAX, |limit| (limit / 2).clamp(1, CONNECTIONS_MAX))
}

/// A counting semaphore.
struct Semaphore {
    free: Mutex<u64>,
    freed: Condvar,
}

/// A permit, released on drop.
struct Permit(Arc<Semaphore>);

impl Semaphore {
    fn new(free: u64) -> Self {
        Self { free: Mutex::new(free), freed: Condvar::new() }
    }

    /// Waits for a permit.
    fn acquire(semaphore: &Arc<Self>) -> Permit {
        let free = semaphore.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = semaphore.freed.wait_while(free, |free| *free == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        Permit(Arc::clone(semaphore))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

fn serve_connection(mut connection: TcpStream) -> io::Result<()> {
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.set_write_timeout(Some(TIMEOUT))?;
    let mut request = Vec::new();
    loop {
        let mut chunk = [0; 1024];
        let read = connection.read(&mut chunk)?;
        if read == 0 {
            return connection.shutdown(Shutdown::Both);
        }
        request.extend_from_slice(&chunk[..read]);
        while let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") {
            respond(&mut connection, &request[..end])?;
            request.drain(..end + 4);
        }
        if request.len() > REQUEST_BYTES_MAX {
            return Ok(());
        }
    }
}

fn respond(connection: &mut TcpStream, request: &[u8]) -> io::Result<()> {
    let (status, bytes) = match response_bytes(request) {
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
        let chunk = left.min(zeros.len() as u64);
        connection.write_all(&zeros[..chunk as usize])?;
        left -= chunk;
    }
    Ok(())
}

/// The size of the requested resource, if it exists.
fn response_bytes(request: &[u8]) -> Option<u64> {
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
            (bytes <= RESPONSE_BYTES_MAX).then_some(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_selects_a_size() {
        assert_eq!(response_bytes(b"GET / HTTP/1.1\r\nHost: world"), Some(100_000));
        assert_eq!(response_bytes(b"HEAD /bytes/7 HTTP/1.1"), Some(7));
        for other in ["GET /bytes/", "GET /bytes/-1 HTTP/1.1", "PUT / HTTP/1.1", "GET", ""] {
            assert_eq!(response_bytes(other.as_bytes()), None, "{other}");
        }
        assert_eq!(response_bytes(b"GET /bytes/99999999999999 HTTP/1.1"), None, "too much");
    }

    proptest! {
        #[test]
        fn arbitrary_requests_do_not_panic(request: Vec<u8>) {
            response_bytes(&request);
        }
    }
}
