//! Requests of HTTP/1 and their responses (RFC 9110, RFC 9112), as bytes.
//!
//! `/bytes/N` is a page of N zeros, and `/` one of 100,000. There are GET and HEAD, byte ranges, and connections that
//! persist or end as HTTP/1.0 and HTTP/1.1 say. A malformed request is answered and ends its connection.

use std::fmt::Write;

/// The longest header of a request. RFC 9112, section 3, recommends 8,000 bytes for its first line alone.
pub const HEADER_BYTES_MAX: usize = 16 * 1024;
/// The size of `/`, and the largest of `/bytes/N`.
const PAGE_BYTES: u64 = 100_000;
const PAGE_BYTES_MAX: u64 = 1 << 40;
const METHODS: [&[u8]; 2] = [b"GET", b"HEAD"];

type Status = &'static str;
const OK: Status = "200 OK";
const PARTIAL_CONTENT: Status = "206 Partial Content";
const BAD_REQUEST: Status = "400 Bad Request";
const NOT_FOUND: Status = "404 Not Found";
const METHOD_NOT_ALLOWED: Status = "405 Method Not Allowed";
const REQUEST_TIMEOUT: Status = "408 Request Timeout";
const URI_TOO_LONG: Status = "414 URI Too Long";
const RANGE_NOT_SATISFIABLE: Status = "416 Range Not Satisfiable";
const FIELDS_TOO_LARGE: Status = "431 Request Header Fields Too Large";
const VERSION_NOT_SUPPORTED: Status = "505 HTTP Version Not Supported";

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The header, and the text of an error.
    pub head: Vec<u8>,
    /// The zeros that follow.
    pub zeros: u64,
    /// Whether the connection ends with it.
    pub closes: bool,
}

/// Answers the first request of what a client has sent, at `unix_s` seconds after 1970. Returns the length of that
/// request and the response; `None` if it is not whole. A response that closes the connection is one to all bytes.
#[must_use]
pub fn answer(received: &[u8], unix_s: u64) -> Option<(usize, Response)> {
    let is_head = received.trim_ascii_start().starts_with(b"HEAD ");
    let (length, reply) = match parse(received) {
        Ok(None) => return None,
        Ok(Some((length, request))) => (length, request.reply()),
        Err(status) => (received.len(), Reply::error(status)),
    };
    let response = reply.response(unix_s, is_head);
    Some((if response.closes { received.len() } else { length }, response))
}

/// The response to a client that does not complete its request in time.
#[must_use]
pub fn timed_out(unix_s: u64) -> Response {
    Reply::error(REQUEST_TIMEOUT).response(unix_s, false)
}

/// Parses the first request with its length. `None` if it is not whole, and may become a request.
fn parse(received: &[u8]) -> Result<Option<(usize, Request<'_>)>, Status> {
    let mut length = 0;
    let mut request: Option<Request<'_>> = None;
    for line in received.split_inclusive(|&byte| byte == b'\n') {
        length += line.len();
        if length > HEADER_BYTES_MAX {
            return Err(if request.is_none() { URI_TOO_LONG } else { FIELDS_TOO_LARGE });
        }
        // A line may end with LF alone (RFC 9112, section 2.2).
        let whole = line.strip_suffix(b"\n");
        let line = whole.unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // Such as the first message of TLS, whose client waits for an answer.
        if line.iter().any(|&byte| byte.is_ascii_control() && byte != b'\t') {
            return Err(BAD_REQUEST);
        }
        if whole.is_none() {
            break;
        }
        match request.take() {
            // Empty lines before a request are ignored.
            None if line.is_empty() => {}
            None => request = Some(Request::parse(line)?),
            Some(known) if line.is_empty() => {
                return known.has_valid_host().then_some(Some((length, known))).ok_or(BAD_REQUEST);
            }
            Some(known) => request = Some(known.with_field(line)?),
        }
    }
    Ok(None)
}

/// What a response depends on.
#[derive(Default)]
struct Request<'a> {
    method: &'a [u8],
    target: &'a [u8],
    is_http_1_0: bool,
    hosts: usize,
    close: bool,
    keep_alive: bool,
    /// The body is not read.
    has_body: bool,
    content_length: Option<&'a [u8]>,
    range: Option<&'a [u8]>,
    /// A range that is not to be sent: of several, or under a condition, as pages have no validators.
    ignores_range: bool,
}

impl<'a> Request<'a> {
    fn parse(line: &'a [u8]) -> Result<Self, Status> {
        let mut words = line.split(|&byte| byte == b' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(BAD_REQUEST);
        };
        let is_target = !target.is_empty() && target.iter().all(u8::is_ascii_graphic);
        let [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] = *version else {
            return Err(BAD_REQUEST);
        };
        if !is_token(method) || !is_target || !major.is_ascii_digit() || !minor.is_ascii_digit() {
            return Err(BAD_REQUEST);
        }
        if major != b'1' {
            return Err(VERSION_NOT_SUPPORTED);
        }
        Ok(Self { method, target, is_http_1_0: minor == b'0', ..Self::default() })
    }

    /// Adds a field. A line that continues the one before (`obs-fold`) has no name, and is refused.
    fn with_field(mut self, line: &'a [u8]) -> Result<Self, Status> {
        let colon = line.iter().position(|&byte| byte == b':').ok_or(BAD_REQUEST)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if !is_token(name) {
            return Err(BAD_REQUEST);
        }
        match name.to_ascii_lowercase().as_slice() {
            b"host" if !value.iter().all(u8::is_ascii_graphic) => return Err(BAD_REQUEST),
            b"host" => self.hosts += 1,
            b"connection" => {
                for option in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
                    self.close |= option.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            b"content-length" => {
                let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
                if !is_number || self.content_length.is_some_and(|other| other != value) {
                    return Err(BAD_REQUEST);
                }
                self.content_length = Some(value);
                self.has_body |= value.iter().any(|&digit| digit != b'0');
            }
            b"transfer-encoding" => self.has_body = true,
            b"range" => self.ignores_range |= self.range.replace(value).is_some(),
            b"if-range" => self.ignores_range = true,
            _ => {}
        }
        Ok(self)
    }

    /// Whether there is one field `Host`, or none in HTTP/1.0 (RFC 9112, section 3.2).
    fn has_valid_host(&self) -> bool {
        self.hosts == 1 || self.hosts == 0 && self.is_http_1_0
    }

    fn reply(&self) -> Reply {
        let mut reply = match (METHODS.contains(&self.method), self.path()) {
            (_, Err(status)) => Reply::error(status),
            (false, _) => Reply {
                fields: "Allow: GET, HEAD\r\n".to_owned(),
                ..Reply::error(METHOD_NOT_ALLOWED)
            },
            (true, Ok(path)) => {
                page_bytes(path).map_or_else(|| Reply::error(NOT_FOUND), |size| self.page(size))
            }
        };
        // RFC 9112, section 9.3.
        let persists = !self.close && (!self.is_http_1_0 || self.keep_alive) && !self.has_body;
        reply.closes |= !persists;
        if persists && self.is_http_1_0 && !reply.closes {
            reply.fields += "Connection: keep-alive\r\n";
        }
        reply
    }

    /// The path of a target, which may be a whole URI (RFC 9112, section 3.2.2), without its query.
    fn path(&self) -> Result<&'a [u8], Status> {
        const SCHEME: &[u8] = b"http://";
        let target = self.target;
        let path: &'a [u8] = match target.get(..SCHEME.len()) {
            Some(scheme) if scheme.eq_ignore_ascii_case(SCHEME) => {
                let rest = &target[SCHEME.len()..];
                let end = rest.iter().position(|byte| b"/?".contains(byte)).unwrap_or(rest.len());
                if rest[end..].starts_with(b"/") { &rest[end..] } else { b"/" }
            }
            _ if target.starts_with(b"/") => target,
            // Of OPTIONS and CONNECT, which are not allowed.
            _ if METHODS.contains(&self.method) => return Err(BAD_REQUEST),
            _ => b"/",
        };
        Ok(path.split(|&byte| byte == b'?').next().unwrap_or(path))
    }

    fn page(&self, size: u64) -> Reply {
        let range = self.range.filter(|_| self.method == b"GET" && !self.ignores_range);
        let whole = Reply {
            status: OK,
            zeros: size,
            fields: "Accept-Ranges: bytes\r\n".to_owned(),
            closes: false,
        };
        match range.map_or(Part::Whole, |range| Part::select(range, size)) {
            Part::Whole => whole,
            Part::Bytes { first, last } => Reply {
                status: PARTIAL_CONTENT,
                zeros: last - first + 1,
                fields: format!("{}Content-Range: bytes {first}-{last}/{size}\r\n", whole.fields),
                ..whole
            },
            Part::Outside => Reply {
                status: RANGE_NOT_SATISFIABLE,
                zeros: 0,
                fields: format!("{}Content-Range: bytes */{size}\r\n", whole.fields),
                ..whole
            },
        }
    }
}

/// RFC 9110, section 5.6.2.
fn is_token(text: &[u8]) -> bool {
    let is_tchar = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_tchar)
}

/// The size of a page, if it exists.
fn page_bytes(path: &[u8]) -> Option<u64> {
    if path == b"/" {
        return Some(PAGE_BYTES);
    }
    number(path.strip_prefix(b"/bytes/")?).filter(|&bytes| bytes <= PAGE_BYTES_MAX)
}

/// A number in digits alone; one that is too large for the type is its largest value.
fn number(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let value =
        |sum: u64, digit: &u8| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    is_number.then(|| digits.iter().fold(0, value))
}

/// What a field `Range` selects of a page (RFC 9110, section 14.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The field is ignored: another unit, several ranges, or none that is valid.
    Whole,
    Bytes {
        first: u64,
        last: u64,
    },
    Outside,
}

impl Part {
    fn select(range: &[u8], size: u64) -> Self {
        let Some(equals) = range.iter().position(|&byte| byte == b'=') else { return Self::Whole };
        let (unit, range) = (&range[..equals], range[equals + 1..].trim_ascii());
        let Some(dash) = range.iter().position(|&byte| byte == b'-') else { return Self::Whole };
        if !unit.eq_ignore_ascii_case(b"bytes") {
            return Self::Whole;
        }
        let (first, last) = match (&range[..dash], &range[dash + 1..]) {
            (b"", last) => match number(last) {
                None => return Self::Whole,
                Some(0) => return Self::Outside,
                Some(length) => (size.saturating_sub(length), u64::MAX),
            },
            (first, b"") => match number(first) {
                None => return Self::Whole,
                Some(first) => (first, u64::MAX),
            },
            (first, last) => match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => (first, last),
                _ => return Self::Whole,
            },
        };
        if first < size { Self::Bytes { first, last: last.min(size - 1) } } else { Self::Outside }
    }
}

/// A response without what is common to all.
struct Reply {
    status: Status,
    fields: String,
    zeros: u64,
    closes: bool,
}

impl Reply {
    /// An error. It ends the connection, unless the request was whole: the end of a malformed one is not known.
    fn error(status: Status) -> Self {
        let closes = ![NOT_FOUND, METHOD_NOT_ALLOWED].contains(&status);
        Self { status, fields: String::new(), zeros: 0, closes }
    }

    fn response(self, unix_s: u64, is_head: bool) -> Response {
        let Self { status, fields, zeros, closes } = self;
        let is_page = [OK, PARTIAL_CONTENT].contains(&status);
        let (kind, text) = match status {
            _ if is_page => ("application/octet-stream", String::new()),
            NOT_FOUND => (
                "text/plain",
                format!(
                    "{status}: /bytes/N has N bytes, at most {PAGE_BYTES_MAX}; / has {PAGE_BYTES}\n"
                ),
            ),
            _ => ("text/plain", format!("{status}\n")),
        };
        let mut head = format!("HTTP/1.1 {status}\r\nDate: {}\r\n{fields}", date(unix_s));
        if closes {
            head += "Connection: close\r\n";
        }
        let length = zeros + text.len() as u64;
        let _ = write!(head, "Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n");
        if !is_head {
            head += &text;
        }
        Response { head: head.into_bytes(), zeros: if is_head { 0 } else { zeros }, closes }
    }
}

/// A date as RFC 9110, section 5.6.7, has it: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn date(unix_s: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb"];
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Years begin in March, so that the day of a leap year is the last one; an era has 400 of them.
    let since_year_0 = days + 719_468;
    let (era, day) = (since_year_0 / 146_097, since_year_0 % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    format!(
        "{}, {:02} {} {} {:02}:{:02}:{:02} GMT",
        DAYS[(days % 7) as usize],
        day - (153 * month + 2) / 5 + 1,
        MONTHS[month as usize],
        400 * era + year + u64::from(month >= 10),
        second / 3_600,
        second / 60 % 60,
        second % 60,
    )
}

#[cfg(test)]
mod tests;
