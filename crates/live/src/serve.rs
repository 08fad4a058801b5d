//! A web server in a namespace, so that there is something to fetch behind a link.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::error::LabError;
use bentpipe_sys::netns::Namespace;

/// The longest request that is read.
const REQUEST_BYTES_MAX: usize = 8 * 1024;
/// How long a silent connection is kept.
const PATIENCE: Duration = Duration::from_secs(120);
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
        for connection in listener.incoming().flatten() {
            let answer = move || {
                // A client that goes away is not our error.
                let _ = converse(connection);
            };
            let _ = thread::Builder::new().name("bentpipe-http".to_owned()).spawn(answer);
        }
    };
    thread::Builder::new().name("bentpipe-http".to_owned()).spawn(serve).map_err(failed)?;
    Ok(())
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
