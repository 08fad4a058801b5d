use super::*;
use proptest::prelude::*;

fn response(request: &str) -> (String, u64, bool) {
    let (length, response) = answer(request.as_bytes(), 0).expect("a whole request");
    assert_eq!(length, request.len(), "{request:?}");
    (String::from_utf8(response.head).expect("text"), response.zeros, response.closes)
}

/// The status code, and whether the connection ends.
fn outcome(request: &str) -> (u16, bool) {
    let (head, _, closes) = response(request);
    assert_eq!(head.contains("\r\nConnection: close\r\n"), closes, "{head}");
    (head[9..12].parse().expect("a number"), closes)
}

#[test]
fn a_target_selects_a_page() {
    for (target, expected) in [
        ("/", Some(100_000)),
        ("/bytes/7", Some(7)),
        ("/bytes/0", Some(0)),
        ("/bytes/7?again=1", Some(7)),
        ("http://world/bytes/7", Some(7)),
        ("HTTP://world:80", Some(100_000)),
        ("http://world?x", Some(100_000)),
        ("/bytes/", None),
        ("/bytes/-1", None),
        ("/bytes/+1", None),
        ("/bytes/99999999999999", None),
        ("/bytes/99999999999999999999999", None),
        ("/other", None),
    ] {
        let (head, zeros, closes) =
            response(&format!("GET {target} HTTP/1.1\r\nHost: world\r\n\r\n"));
        assert_eq!(head.starts_with("HTTP/1.1 200 OK\r\n").then_some(zeros), expected, "{target}");
        assert_eq!(head.contains(" 404 "), expected.is_none(), "{target}");
        assert!(!closes, "{target}");
    }
}

/// Given HTTP/1.0 without `Connection: keep-alive`, or `Connection: close`, expect the connection to end: `ab` waits
/// for that.
#[test]
fn a_connection_ends_when_the_client_expects_it() {
    for (version, fields, closes) in [
        ("1.1", "", false),
        ("1.1", "Connection: close\r\n", true),
        ("1.1", "Connection: te, Close\r\n", true),
        ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", true),
        ("1.0", "", true),
        ("1.0", "Connection: Keep-Alive\r\n", false),
        ("1.9", "", false),
        ("1.1", "Content-Length: 0\r\n", false),
        // Its body is not read.
        ("1.1", "Content-Length: 5\r\n", true),
        ("1.1", "Transfer-Encoding: chunked\r\n", true),
    ] {
        let request = format!("GET / HTTP/{version}\r\nHost: world\r\n{fields}\r\n");
        assert_eq!(outcome(&request), (200, closes), "{request:?}");
        let is_told = response(&request).0.contains("\r\nConnection: keep-alive\r\n");
        assert_eq!(is_told, version == "1.0" && !closes, "{request:?}");
    }
}

#[test]
fn malformed_requests_are_answered_and_end_the_connection() {
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nA: \0\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nA: b\rc\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        ("GET bytes/7 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        // Nothing follows: the client waits for an answer.
        ("GET /\r\n", 400),
        ("GET  / HTTP/1.1\r\n", 400),
        ("GET / HTTP/1.1 x\r\n", 400),
        ("GET / http/1.1\r\n", 400),
        ("\u{16}\u{3}\u{1}", 400),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ] {
        assert_eq!(outcome(request), (status, true), "{request:?}");
    }
    let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(HEADER_BYTES_MAX));
    assert_eq!(outcome(&long), (414, true));
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}", "x".repeat(HEADER_BYTES_MAX));
    assert_eq!(outcome(&long), (431, true));
    let head = response("HEAD / HTTP/1.1\r\n\r\n").0;
    assert!(head.ends_with("\r\n\r\n") && head.contains("Content-Length: 16\r\n"), "{head}");
}

#[test]
fn other_methods_are_not_allowed() {
    for request in
        ["OPTIONS * HTTP/1.1", "CONNECT a:1 HTTP/1.1", "POST / HTTP/1.1", "get / HTTP/1.1"]
    {
        let request = format!("{request}\r\nHost: a\r\n\r\n");
        assert_eq!(outcome(&request), (405, false), "{request:?}");
        assert!(response(&request).0.contains("\r\nAllow: GET, HEAD\r\n"));
    }
}

#[test]
fn head_has_the_fields_of_get_and_no_body() {
    let of = |method: &str| response(&format!("{method} /bytes/7 HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_eq!((of("HEAD").0, of("HEAD").1, of("GET").1), (of("GET").0, 0, 7));
    assert!(of("HEAD").0.contains("Content-Length: 7\r\n"));
}

#[test]
fn a_range_selects_a_part() {
    for (range, size, expected) in [
        ("bytes=0-0", 10, Part::Bytes { first: 0, last: 0 }),
        ("bytes=2-99", 10, Part::Bytes { first: 2, last: 9 }),
        ("Bytes=9-", 10, Part::Bytes { first: 9, last: 9 }),
        ("bytes=-3", 10, Part::Bytes { first: 7, last: 9 }),
        ("bytes=-30", 10, Part::Bytes { first: 0, last: 9 }),
        ("bytes=0-99999999999999999999", 10, Part::Bytes { first: 0, last: 9 }),
        ("bytes=10-", 10, Part::Outside),
        ("bytes=99999999999999999999-", 10, Part::Outside),
        ("bytes=-0", 10, Part::Outside),
        ("bytes=0-", 0, Part::Outside),
        ("bytes=-1", 0, Part::Outside),
        ("bytes=3-2", 10, Part::Whole),
        ("bytes=0-1,3-4", 10, Part::Whole),
        ("bytes=", 10, Part::Whole),
        ("bytes=-", 10, Part::Whole),
        ("bytes=+1-2", 10, Part::Whole),
        ("lines=0-1", 10, Part::Whole),
        ("bytes", 10, Part::Whole),
    ] {
        assert_eq!(Part::select(range.as_bytes(), size), expected, "{range} of {size}");
    }
}

#[test]
fn a_range_is_sent_where_its_request_allows_it() {
    let of = |line: &str, fields: &str| {
        response(&format!("{line} HTTP/1.1\r\nHost: a\r\nRange: bytes=2-4\r\n{fields}\r\n"))
    };
    let (head, zeros, closes) = of("GET /bytes/10", "");
    assert!(
        head.starts_with("HTTP/1.1 206 ") && head.contains("Content-Range: bytes 2-4/10\r\n"),
        "{head}"
    );
    assert_eq!((zeros, closes, head.contains("Content-Length: 3\r\n")), (3, false, true));
    let (head, zeros, closes) = of("GET /bytes/2", "");
    assert!(
        head.starts_with("HTTP/1.1 416 ") && head.contains("Content-Range: bytes */2\r\n"),
        "{head}"
    );
    assert_eq!((zeros, closes), (0, false));
    for (line, fields) in [
        ("HEAD /bytes/10", ""),
        ("GET /bytes/10", "If-Range: \"x\"\r\n"),
        ("GET /bytes/10", "Range: bytes=2-4\r\n"),
    ] {
        assert!(of(line, fields).0.starts_with("HTTP/1.1 200 "), "{line} {fields}");
    }
}

#[test]
fn requests_follow_each_other_and_may_have_empty_lines_before() {
    let one = "\r\n\nGET /bytes/1 HTTP/1.1\nHost: a\n\n";
    let two = format!("{one}GET /bytes/2 HTTP/1.1\r\nHost: a\r\n\r\n");
    let (length, first) = answer(two.as_bytes(), 0).expect("whole");
    assert_eq!((length, first.zeros), (one.len(), 1));
    let (length, second) = answer(&two.as_bytes()[length..], 0).expect("whole");
    assert_eq!((length, second.zeros), (two.len() - one.len(), 2));
    for end in 0..one.len() {
        assert_eq!(answer(&two.as_bytes()[..end], 0), None, "{end}");
    }
}

/// Given the example of RFC 9110, and days around the end of February, expect their dates.
#[test]
fn dates_are_those_of_the_calendar() {
    for (unix_s, expected) in [
        (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
        (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
        (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
        (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
        (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
    ] {
        assert_eq!(date(unix_s), expected);
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(request: Vec<u8>, unix_s: u64) {
        let _ = answer(&request, unix_s);
    }

    #[test]
    fn requests_in_pieces_are_those_in_one(number: u64, fields in "(A: [ -~]{0,9}\r\n){0,3}", cut: prop::sample::Index) {
        let text = format!("GET /bytes/{number} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        prop_assert!(answer(text.as_bytes(), 0).is_some());
        prop_assert_eq!(answer(&text.as_bytes()[..cut.index(text.len())], 0), None);
    }
}
