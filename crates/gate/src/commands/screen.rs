//! Lines on a terminal: tables that fit, and a status that is updated.

use std::io::{self, IsTerminal, Write};
use std::thread::sleep;
use std::time::Duration;

use super::checks::Check;
use super::failure::{Done, print};

/// The time between two updates on a terminal, and elsewhere.
const EVERY: Duration = Duration::from_millis(500);
const LINES_EVERY: Duration = Duration::from_secs(10);
const COLUMNS: usize = 80;
/// xterm's control sequences (ctlseqs): the alternate screen without a cursor, and back; the first line; the end of a line and
/// of the screen erased.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const ERASE_LINE: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";

/// Prints checks in a table, those that fail with their remedy; on a terminal its lines fit.
///
/// Of those with a dash, other things work without what they need.
pub(super) fn print_checks(checks: &[Check]) {
    let asked = std::env::var("COLUMNS").ok();
    let is_bounded = io::stdout().is_terminal() || asked.is_some();
    let columns = is_bounded.then(|| {
        let asked = asked.and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
        asked.or_else(terminal_columns).unwrap_or(COLUMNS)
    });
    print(&table(checks, columns).join("\n"));
}

fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// The lines of a table of checks, with at most so many columns.
pub(super) fn table(checks: &[Check], columns: Option<usize>) -> Vec<String> {
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let indent = " ".repeat(width + 6);
    let mut lines = Vec::new();
    for Check { name, ok, found, fix, needed } in checks {
        let mark = match (ok, needed) {
            (true, _) => "ok ",
            (false, true) => "NO ",
            (false, false) => "-  ",
        };
        lines.extend(wrapped(&format!("{mark} {name:width$}  {found}"), &indent, columns));
        if !ok {
            lines.extend(wrapped(&format!("{indent}To fix it: {fix}"), &indent, columns));
        }
    }
    lines
}

/// A text as lines that end at spaces; those after the first one are indented.
fn wrapped(text: &str, indent: &str, columns: Option<usize>) -> Vec<String> {
    let Some(columns) = columns else { return vec![text.to_owned()] };
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let length = line.chars().count() + 1 + word.chars().count();
        if length > columns && !line.trim().is_empty() {
            lines.push(line.trim_end().to_owned());
            line = format!("{indent}{word}");
        } else if lines.is_empty() && line.is_empty() {
            line.push_str(word);
            // The text may begin with spaces.
            if word.is_empty() {
                line.push(' ');
            }
        } else {
            if !line.ends_with(' ') || word.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.push(line.trim_end().to_owned());
    lines
}

/// Shows lines twice a second on a terminal, and every ten seconds elsewhere, until `update` fails.
///
/// # Errors
/// Of the first update. The last lines stay on the terminal.
pub(super) fn watch(mut update: impl FnMut() -> Done<Vec<String>>) -> Done {
    let mut shown = update()?;
    let mut output = io::stdout();
    let is_dumb = std::env::var("TERM").is_ok_and(|name| ["dumb", "unknown"].contains(&&*name));
    if !output.is_terminal() || is_dumb {
        loop {
            if writeln!(output, "{}", shown.join("\n")).and_then(|()| output.flush()).is_err() {
                return Ok(());
            }
            sleep(LINES_EVERY);
            match update() {
                Ok(lines) => shown = lines,
                Err(_) => return Ok(()),
            }
        }
    }
    let interrupted = bentpipe_sys::signals::Signals::block();
    let _ = write!(output, "{ENTER}");
    let end = loop {
        let lines: String = shown.iter().map(|line| format!("{line}{ERASE_LINE}\r\n")).collect();
        let _ = write!(output, "{HOME}{lines}{ERASE_BELOW}");
        let _ = output.flush();
        if wait(interrupted.as_ref().ok()) {
            break Some(());
        }
        match update() {
            Ok(lines) => shown = lines,
            Err(_) => break None,
        }
    };
    let _ = write!(output, "{LEAVE}");
    print(&shown.join("\n"));
    if end.is_some() {
        // As after Ctrl-C, without the screen that would stay otherwise.
        std::process::exit(130);
    }
    Ok(())
}

/// Waits for the next update; whether a signal ends the program first.
fn wait(signals: Option<&bentpipe_sys::signals::Signals>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let Some(signals) = signals else {
        sleep(EVERY);
        return false;
    };
    let mut ready = [PollFd::new(signals, PollFlags::IN)];
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(EVERY.subsec_nanos()) };
    poll(&mut ready, Some(&timeout)).is_ok_and(|count| count > 0)
}
