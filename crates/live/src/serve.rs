//! An HTTP server in a namespace, for downloads over a link.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::LabError;
use crate::http::{self, Response};
use bentpipe_sys::clock::Clock;
use bentpipe_sys::netns::Namespace;

/// How long an idle connection is kept, and the time for a whole request, for each part of a response, and for the
/// client to close the connection after the last one.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The most connections served at once. More wait in the kernel's listen backlog.
const CONNECTIONS_MAX: u64 = 1_024;
/// The pause after accept(2) fails for lack of file descriptors or memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// What is written at once.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Serves HTTP on port 80 of a namespace until the process ends: see [`http`].
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
    let serve = move || serve_all(&listener);
    thread::Builder::new().name("bentpipe-http".to_owned()).spawn(serve).map_err(failed)?;
    Ok(())
}

/// Serves each connection in a thread of its own.
fn serve_all(listener: &TcpListener) {
    let semaphore = Arc::new(Semaphore::new(connection_limit()));
    loop {
        let permit = Semaphore::acquire(&semaphore);
        let Ok((connection, _)) = listener.accept() else {
            thread::sleep(ACCEPT_BACKOFF);
            continue;
        };
        let handle = move || {
            // A client that disconnects is not an error here.
            let _ = serve_connection(connection, TIMEOUT);
            drop(permit);
        };
        let thread = thread::Builder::new().name("bentpipe-http".to_owned());
        if thread.spawn(handle).is_err() {
            // The connection is closed. Give others time to end.
            thread::sleep(ACCEPT_BACKOFF);
        }
    }
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

fn serve_connection(mut connection: TcpStream, timeout: Duration) -> io::Result<()> {
    connection.set_write_timeout(Some(timeout))?;
    let mut received = Vec::new();
    while let Some(response) = next_response(&mut connection, &mut received, timeout)? {
        respond(&mut connection, &response)?;
        if response.closes {
            return close(&mut connection, timeout);
        }
    }
    Ok(())
}

/// The response to the next request; `None` if the client has closed the connection, or was idle for too long.
fn next_response(
    connection: &mut TcpStream,
    received: &mut Vec<u8>,
    timeout: Duration,
) -> io::Result<Option<Response>> {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let (clock, mut piece) = (Clock::start(), [0; 4_096]);
    loop {
        if let Some((length, response)) = http::answer(received, now()) {
            received.drain(..length);
            return Ok(Some(response));
        }
        match read(connection, &mut piece, clock, timeout) {
            Ok(0) => return Ok(None),
            Ok(bytes) => received.extend_from_slice(&piece[..bytes]),
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                return Ok((!received.is_empty()).then(|| http::timed_out(now())));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reads what there is.
///
/// # Errors
/// `TimedOut` if nothing comes until `timeout` after the start of the clock.
fn read(
    connection: &mut TcpStream,
    piece: &mut [u8],
    clock: Clock,
    timeout: Duration,
) -> io::Result<usize> {
    loop {
        let passed = Duration::from_nanos(clock.now().as_nanos());
        let left = timeout.checked_sub(passed).filter(|left| !left.is_zero());
        connection.set_read_timeout(Some(left.ok_or(ErrorKind::TimedOut)?))?;
        match connection.read(piece) {
            // The kernel's name of a time limit that is over.
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            result => return result,
        }
    }
}

fn respond(connection: &mut impl Write, response: &Response) -> io::Result<()> {
    let size = |left: u64| left.min(ZEROS.len() as u64) as usize;
    // Nagle's algorithm would delay a small page by a round trip if the header were a segment of its own.
    let first = size(response.zeros);
    connection.write_all(&[response.head.as_slice(), &ZEROS[..first]].concat())?;
    let mut left = response.zeros - first as u64;
    while left > 0 {
        connection.write_all(&ZEROS[..size(left)])?;
        left -= size(left) as u64;
    }
    Ok(())
}

/// Closes in stages: a client that still sends would lose the response by a reset (RFC 9112, section 9.6).
fn close(connection: &mut TcpStream, timeout: Duration) -> io::Result<()> {
    connection.shutdown(Shutdown::Write)?;
    let (clock, mut piece) = (Clock::start(), [0; 4_096]);
    while read(connection, &mut piece, clock, timeout)? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// A server on the loopback interface, and what it answers to a client until it ends the connection.
    fn exchange(parts: &[&[u8]], timeout: Duration) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let mut client =
            TcpStream::connect(listener.local_addr().expect("bound")).expect("listens");
        let (connection, _) = listener.accept().expect("connected");
        client.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        let mut reply = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| serve_connection(connection, timeout));
            for part in parts {
                client.write_all(part).expect("the server reads");
            }
            // It does not wait for the client to close.
            client.read_to_end(&mut reply).expect("the server closes");
            drop(client);
        });
        String::from_utf8(reply).expect("text and zeros")
    }

    /// Given the requests of `ab`, with and without -k, expect pages and the end of the connection.
    #[test]
    fn requests_of_http_1_0_end_the_connection() {
        let request = |target: &str, fields: &str| {
            let host = "Host: world\r\nUser-Agent: ApacheBench/2.3\r\nAccept: */*\r\n";
            format!("GET {target} HTTP/1.0\r\n{fields}{host}\r\n")
        };
        let reply = exchange(&[request("/bytes/200000", "").as_bytes()], TIMEOUT);
        let (head, body) = reply.split_once("\r\n\r\n").expect("a header");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Connection: close"));
        assert!(body.len() == 200_000 && body.bytes().all(|byte| byte == 0));

        let kept = request("/bytes/3", "Connection: Keep-Alive\r\n");
        let requests =
            [kept.as_bytes(), kept.as_bytes(), &request("/bytes/4", "").into_bytes()[..]];
        let reply = exchange(&requests, TIMEOUT);
        assert_eq!(reply.matches("HTTP/1.1 200 OK\r\n").count(), 3);
        assert_eq!(reply.matches("Connection: keep-alive\r\n").count(), 2);
        assert!(reply.ends_with("\r\n\r\n\0\0\0\0"));
    }

    /// Given more bytes than are read after a header that is too large, expect the answer, and no reset before it.
    #[test]
    fn a_client_that_sends_too_much_gets_an_answer() {
        let long = [&b"GET / HTTP/1.1\r\nHost: a\r\nA: "[..], &[b'x'; 300_000]].concat();
        assert!(exchange(&[&long], TIMEOUT).starts_with("HTTP/1.1 431 "));
        assert!(exchange(&[&[0x16, 3, 1, 2, 0]], TIMEOUT).starts_with("HTTP/1.1 400 "));
    }

    /// Given a client that sends a byte now and then, expect the time limit to be that of the whole request.
    #[test]
    fn a_request_has_a_time_limit() {
        let timeout = Duration::from_millis(50);
        assert!(exchange(&[b"GET / HTTP/1.1\r\n", b"H"], timeout).starts_with("HTTP/1.1 408 "));
        assert_eq!(exchange(&[], timeout), "");
    }

    /// Counts the calls of write(2).
    #[derive(Default)]
    struct Writes(Vec<usize>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Given a small page, expect one segment with header and body; given a large one, expect all of its bytes.
    #[test]
    fn a_small_page_is_written_at_once() {
        for (zeros, writes) in [(1_000, 1), (200_000, 4)] {
            let response = Response { head: vec![b'x'; 100], zeros, closes: false };
            let mut written = Writes::default();
            respond(&mut written, &response).expect("it can be written");
            assert_eq!(written.0.len(), writes);
            assert_eq!(written.0.iter().sum::<usize>() as u64, 100 + zeros);
        }
    }
}
