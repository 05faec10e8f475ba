//! Access logs in Common or Combined Log Format, read as bytes.
//!
//! ```text
//! 192.0.2.7 - alice [17/May/2015:10:05:03 +0200] "GET /index.html HTTP/1.1" 200 5120 "referer"
//! "agent" client    identity, user, timestamp with zone    request               status bytes  the
//! tail
//! ```
//!
//! A line parses if everything up to the bytes is whole and in range:
//!
//! - The client and the identity are words, the user is what stands before ` [` (user names may
//!   hold spaces), and none of them is empty.
//! - The request is quoted; a backslash in it takes the next byte with it, so `\"` does not end it.
//! - The status has three digits, the bytes are digits or `-`.
//! - The line is UTF-8 without control characters other than the tab.
//!
//! The virtual-host formats of Apache and nginx, both called `vhost_combined`, put `name:port` and
//! a space before all this. That word is skipped. What looks like one and is an IPv6 address, or
//! has no whole line behind it, is the client.
//!
//! A byte-order mark at the start of a log is skipped, too.
//!
//! The text after the bytes and a space, the referer and the agent of the Combined format, is not
//! checked. Servers cut agents short at their own limits, and sessions do not depend on them.

use std::collections::HashMap;
use std::io::{self, BufRead};
use std::net::IpAddr;
use std::sync::Arc;

/// The first field of a line: an address or a name.
pub(crate) type Client = Arc<str>;

/// The number of bytes of a line that are kept. The rest is read and dropped: Apache's own limit
/// for a request is 8 KiB, and a file without a newline should not fill the memory.
const LINE_LIMIT: usize = 1 << 20;

/// The years that parse. Their span fits into the 584 years of a clock that counts nanoseconds,
/// with room for the longest idle time.
const YEARS: std::ops::RangeInclusive<i64> = 1970..=2399;

const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// The byte-order mark, which editors of Windows put at the start of a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The length of the text that is shown of a line that does not parse.
const EXCERPT: usize = 200;

/// The first bytes of compressed files, and the commands that unpack them.
const PACKED: [(&[u8], Packed); 4] = [
    (
        b"\x1f\x8b",
        Packed {
            format: "gzip",
            unpack: "gzip -dc",
        },
    ),
    (
        b"\x28\xb5\x2f\xfd",
        Packed {
            format: "zstd",
            unpack: "zstd -dc",
        },
    ),
    (
        b"\xfd7zXZ\0",
        Packed {
            format: "xz",
            unpack: "xz -dc",
        },
    ),
    (
        b"BZh",
        Packed {
            format: "bzip2",
            unpack: "bzip2 -dc",
        },
    ),
];

/// A compressed format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) format: &'static str,
    /// The command that writes the unpacked file to stdout.
    pub(crate) unpack: &'static str,
}

/// One parsed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// The first field.
    pub(crate) client: &'a str,
    /// Seconds since 1970 in UTC.
    pub(crate) instant: i64,
}

/// One request of a log; `client` counts into [`Log::clients`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Seconds since 1970 in UTC.
    pub(crate) instant: i64,
    /// The client that sent it.
    pub(crate) client: u32,
}

/// A log, ordered by instant; requests of the same instant are in the order of their lines.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) requests: Vec<Request>,
    pub(crate) clients: Vec<Client>,
    /// The number of lines that did not parse.
    pub(crate) broken: u64,
    /// The number of the first line that did not parse, counted from 1.
    pub(crate) first_broken: Option<u64>,
    /// The beginning of that line.
    pub(crate) excerpt: Vec<u8>,
    /// The format, if the log is compressed. Then it was not read any further.
    pub(crate) packed: Option<Packed>,
}

impl Log {
    /// Reads a log to its end. `progress` gets the number of bytes read so far, after each line.
    pub(crate) fn read(input: impl BufRead, mut progress: impl FnMut(u64)) -> io::Result<Log> {
        let mut lines = Lines {
            input,
            line: Vec::new(),
            read: 0,
        };
        let mut log = Log::default();
        let mut known: HashMap<Client, u32> = HashMap::new();
        let mut number = 0;
        while let Some(line) = lines.next()? {
            number += 1;
            let line = if number == 1 {
                if let Some((_, packed)) = PACKED.iter().find(|(magic, _)| line.starts_with(magic))
                {
                    log.packed = Some(*packed);
                    return Ok(log);
                }
                line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line)
            } else {
                line
            };
            if let Some(Line { client, instant }) = parse_line(line) {
                let client = known.get(client).copied().unwrap_or_else(|| {
                    let index = u32::try_from(log.clients.len()).expect("fewer than 2^32 clients");
                    let client = Client::from(client);
                    log.clients.push(Client::clone(&client));
                    known.insert(client, index);
                    index
                });
                log.requests.push(Request { instant, client });
            } else {
                log.broken += 1;
                if log.first_broken.is_none() {
                    log.first_broken = Some(number);
                    log.excerpt = line[..line.len().min(EXCERPT)].to_vec();
                }
            }
            progress(lines.read);
        }
        // A stable sort, since only the order of the lines tells requests of one second apart.
        log.requests.sort_by_key(|request| request.instant);
        Ok(log)
    }
}

/// Reads lines without their end, up to [`LINE_LIMIT`] bytes of each.
struct Lines<R> {
    input: R,
    line: Vec<u8>,
    read: u64,
}

impl<R: BufRead> Lines<R> {
    /// Returns the next line, or `None` at the end. The last line needs no newline.
    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        let mut any = false;
        loop {
            let available = match self.input.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if available.is_empty() {
                break;
            }
            any = true;
            let newline = available.iter().position(|&byte| byte == b'\n');
            let part = &available[..newline.unwrap_or(available.len())];
            let room = LINE_LIMIT - self.line.len();
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            let used = part.len() + usize::from(newline.is_some());
            self.input.consume(used);
            self.read += used as u64;
            if newline.is_some() {
                break;
            }
        }
        Ok(any.then_some(&self.line))
    }
}

/// Parses one line, with or without its end. Returns `None` if it is not a whole line of the
/// format.
pub(crate) fn parse_line(line: &[u8]) -> Option<Line<'_>> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = match std::str::from_utf8(line) {
        Ok(text) => text,
        // The limit may have cut a character in two.
        Err(error) if line.len() == LINE_LIMIT && error.error_len().is_none() => {
            std::str::from_utf8(&line[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    if text
        .bytes()
        .any(|byte| byte.is_ascii_control() && byte != b'\t')
    {
        return None;
    }
    // After a virtual host the rest is a whole line. Without a virtual host it hardly ever is.
    let behind_host = text.split_once(' ').filter(|(word, _)| is_host(word));
    behind_host
        .and_then(|(_, rest)| parse_request(rest))
        .or_else(|| parse_request(text))
}

/// Returns whether a word is a virtual host with its port, like `www.example.org:443` or
/// `[2001:db8::7]:443`.
fn is_host(word: &str) -> bool {
    let Some((name, port)) = word.rsplit_once(':') else {
        return false;
    };
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    // A client's address may end in a colon and digits, too: `2001:db8::7`.
    digits && port.parse::<u16>().is_ok() && !name.is_empty() && word.parse::<IpAddr>().is_err()
}

fn parse_request(text: &str) -> Option<Line<'_>> {
    let (client, rest) = text.split_once(' ')?;
    let (identity, rest) = rest.split_once(' ')?;
    let (user, rest) = rest.split_once(" [")?;
    if client.is_empty() || identity.is_empty() || user.is_empty() {
        return None;
    }
    let (stamp, rest) = rest.split_once("] \"")?;
    let instant = parse_timestamp(stamp.as_bytes())?;
    let rest = after_quoted(rest.as_bytes())?.strip_prefix(b" ")?;
    let (status, rest) = rest.split_at_checked(3)?;
    let rest = rest.strip_prefix(b" ")?;
    let bytes = rest.split(|&byte| byte == b' ').next()?;
    let digits = |field: &[u8]| !field.is_empty() && field.iter().all(u8::is_ascii_digit);
    (digits(status) && (bytes == b"-" || digits(bytes))).then_some(Line { client, instant })
}

/// Returns the text after the quote that ends a quoted field.
fn after_quoted(mut text: &[u8]) -> Option<&[u8]> {
    loop {
        let end = text
            .iter()
            .position(|&byte| byte == b'"' || byte == b'\\')?;
        if text[end] == b'"' {
            return Some(&text[end + 1..]);
        }
        text = text.get(end + 2..)?;
    }
}

/// Parses a time like `17/May/2015:10:05:03 +0200` into seconds since 1970 in UTC. Leap seconds do
/// not parse, since clocks of servers do not show them.
pub(crate) fn parse_timestamp(stamp: &[u8]) -> Option<i64> {
    let stamp: &[u8; 26] = stamp.try_into().ok()?;
    let marks = [
        (2, b'/'),
        (6, b'/'),
        (11, b':'),
        (14, b':'),
        (17, b':'),
        (20, b' '),
    ];
    if marks.iter().any(|&(at, mark)| stamp[at] != mark) {
        return None;
    }
    let number = |from: usize, to: usize, most: i64| {
        let mut value = 0;
        for &digit in &stamp[from..to] {
            if !digit.is_ascii_digit() {
                return None;
            }
            value = value * 10 + i64::from(digit - b'0');
        }
        (value <= most).then_some(value)
    };
    let month = MONTHS.iter().position(|name| name[..] == stamp[3..6])?;
    let year = number(7, 11, *YEARS.end())?;
    if year < *YEARS.start() {
        return None;
    }
    let day = number(0, 2, days_in_month(year, month))?;
    if day == 0 {
        return None;
    }
    let seconds = number(12, 14, 23)? * 3600 + number(15, 17, 59)? * 60 + number(18, 20, 59)?;
    let zone = number(22, 24, 23)? * 3600 + number(24, 26, 59)? * 60;
    // A clock east of Greenwich shows a later time than UTC.
    let zone = match stamp[21] {
        b'+' => zone,
        b'-' => -zone,
        _ => return None,
    };
    Some(days_since_1970(year, month, day) * 86_400 + seconds - zone)
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Returns the length of a month, which counts from 0.
fn days_in_month(year: i64, month: usize) -> i64 {
    match month {
        1 if is_leap(year) => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

/// Returns the days from 1 January 1970 to a date in the Gregorian calendar. The month counts from
/// 0.
fn days_since_1970(year: i64, month: usize, day: i64) -> i64 {
    let leap_days = |year: i64| year / 4 - year / 100 + year / 400;
    let years = (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969);
    let months: i64 = (0..month).map(|month| days_in_month(year, month)).sum();
    years + months + day - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(text: &str) -> Option<i64> {
        parse_timestamp(text.as_bytes())
    }

    fn line(text: &str) -> Option<(&str, i64)> {
        parse_line(text.as_bytes()).map(|line| (line.client, line.instant))
    }

    #[test]
    fn timestamps_become_seconds_of_utc() {
        for (text, seconds) in [
            ("01/Jan/1970:00:00:00 +0000", 0),
            ("17/May/2015:10:05:03 +0000", 1_431_857_103),
            ("17/May/2015:12:05:03 +0200", 1_431_857_103),
            ("17/May/2015:04:35:03 -0530", 1_431_857_103),
            ("29/Feb/2000:23:59:59 +0000", 951_868_799),
            ("01/Mar/2000:00:00:00 +0000", 951_868_800),
            ("01/Mar/2100:00:00:00 +0000", 4_107_542_400),
            ("01/Jan/1970:00:00:00 +0100", -3_600),
            ("31/Dec/2399:23:59:59 +0000", 13_569_465_599),
        ] {
            assert_eq!(stamp(text), Some(seconds), "{text}");
        }
    }

    #[test]
    fn timestamps_out_of_range_do_not_parse() {
        for text in [
            "",
            "17/May/2015:10:05:03",
            "17/May/2015:10:05:03 0000",
            "17/May/2015:10:05:03 +00000",
            "17/May/2015:10:05:03 +2400",
            "17/May/2015:10:05:03 +0060",
            "17/May/2015:10:05:03 *0000",
            "17/may/2015:10:05:03 +0000",
            "17/Mai/2015:10:05:03 +0000",
            "00/May/2015:10:05:03 +0000",
            "32/May/2015:10:05:03 +0000",
            "31/Apr/2015:10:05:03 +0000",
            "29/Feb/2015:10:05:03 +0000",
            "29/Feb/2100:10:05:03 +0000",
            "17/May/1969:10:05:03 +0000",
            "17/May/2400:10:05:03 +0000",
            "17/May/2015:24:05:03 +0000",
            "17/May/2015:10:60:03 +0000",
            "17/May/2015:10:05:60 +0000",
            "17-May-2015:10:05:03 +0000",
            "+7/May/2015:10:05:03 +0000",
            "17/May/2015:10:05:03 +00 0",
        ] {
            assert_eq!(stamp(text), None, "{text}");
        }
    }

    #[test]
    fn both_formats_parse() {
        for text in [
            "h - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5",
            "h - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 304 -",
            "h - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5\r\n",
            "h - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"agent\"",
            "h - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"cut of",
            "h - a user [17/May/2015:10:05:03 +0000] \"\" 200 5",
            r#"h - - [17/May/2015:10:05:03 +0000] "GET /\"[x] \" 200 \\" 200 5"#,
            "h i u [17/May/2015:10:05:03 +0000] \"GET /gr\u{fc}n\tx HTTP/1.1\" 200 5",
        ] {
            assert_eq!(line(text), Some(("h", 1_431_857_103)), "{text}");
        }
        assert_eq!(
            line("2001:db8::7 - - [01/Jan/1970:00:00:09 +0000] \"GET /\" 200 1"),
            Some(("2001:db8::7", 9))
        );
    }

    #[test]
    fn a_virtual_host_in_front_is_skipped() {
        let rest = "- u [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"agent\"";
        for host in [
            "www.example.org:443",
            "192.0.2.1:80",
            "[2001:db8::1]:8080",
            "x:0",
            "a:b:1",
        ] {
            for client in ["192.0.2.7", "2001:db8::7", "host", "-"] {
                let text = format!("{host} {client} {rest}");
                assert_eq!(line(&text), Some((client, 1_431_857_103)), "{text}");
            }
        }
        // These are clients.
        for client in [
            "2001:db8::7",
            "::1",
            "::ffff:1",
            "www.example.org:443",
            "h:65536",
            ":80",
        ] {
            let text = format!("{client} {rest}");
            assert_eq!(line(&text), Some((client, 1_431_857_103)), "{text}");
        }
        let cut = "www.example.org:443 192.0.2.7 - - [17/May/2015:10:05:03 +0000] \"GET /";
        assert_eq!(line(cut), None);
    }

    #[test]
    fn a_byte_order_mark_is_skipped_at_the_start_alone() {
        let line = "h - - [01/Jan/1970:00:00:09 +0000] \"GET /\" 200 1\n";
        let read = |text: &str| Log::read(text.as_bytes(), |_| ()).expect("memory can be read");
        let log = read(&format!("\u{feff}{line}{line}"));
        assert_eq!((log.requests.len(), log.broken), (2, 0));
        assert_eq!(log.clients, [Client::from("h")]);
        let log = read(&format!("{line}\u{feff}{line}"));
        assert_eq!(log.clients, [Client::from("h"), Client::from("\u{feff}h")]);
    }

    #[test]
    fn compressed_logs_are_recognised_and_read_no_further() {
        for (magic, packed) in PACKED {
            let mut bytes = magic.to_vec();
            bytes.extend(b"\x08 and so on\n");
            bytes.extend(b"h - - [01/Jan/1970:00:00:09 +0000] \"GET /\" 200 1\n");
            let log = Log::read(&*bytes, |_| ()).expect("memory can be read");
            assert_eq!((log.packed, log.requests.len()), (Some(packed), 0));
        }
        let log = Log::read(&b"BZ - -\n"[..], |_| ()).expect("memory can be read");
        assert_eq!((log.packed, &*log.excerpt), (None, &b"BZ - -"[..]));
    }

    #[test]
    fn broken_lines_do_not_parse() {
        let whole = "h - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5";
        assert!(line(whole).is_some());
        for cut in 0..whole.len() {
            assert_eq!(line(&whole[..cut]), None, "{}", &whole[..cut]);
        }
        for text in [
            "\n",
            "\r\n",
            " - - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 5",
            "h - [17/May/2015:10:05:03 +0000] \"GET /\" 200 5",
            "h - - [17/May/2015:10:05:03 +0000] \"GET /\\\" 200 5",
            "h - - [17/May/2015:10:05:03 +0000] GET / 200 5",
            "h - - [17/May/2015:10:05:03 +0000] \"GET /\" 20 5",
            "h - - [17/May/2015:10:05:03 +0000] \"GET /\" 2000 5",
            "h - - [17/May/2015:10:05:03 +0000] \"GET /\" 2x0 5",
            "h - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 x",
            "h - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 -5",
            "h - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 5\"x\"",
            "h - - [17/May/2015:10:05:03 +0000] \"GET /\0\" 200 5",
            "h\x07 - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 5",
        ] {
            assert_eq!(line(text), None, "{text:?}");
        }
        let not_utf8 = b"h\xff - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 5";
        assert_eq!(parse_line(not_utf8), None);
        let not_utf8 = b"h - - [17/May/2015:10:05:03 +0000] \"GET /\xe4\" 200 5";
        assert_eq!(parse_line(not_utf8), None);
    }

    #[test]
    fn a_log_is_ordered_by_instant_and_then_by_line() {
        let text = concat!(
            "a - - [01/Jan/1970:00:00:09 +0000] \"GET /\" 200 1\r\n",
            "\n",
            "b - - [01/Jan/1970:01:00:07 +0100] \"GET /\" 200 1\n",
            "c - - [01/Jan/1970:00:00:09 +0000] \"GET /\" 200 1\n",
            "cut\n",
            "b - - [01/Jan/1970:00:00:09 +0000] \"GET /\" 200 1",
        );
        let mut told = 0;
        let log = Log::read(text.as_bytes(), |read| told = read).expect("memory can be read");
        let order: Vec<_> = log
            .requests
            .iter()
            .map(|request| (request.instant, &*log.clients[request.client as usize]))
            .collect();
        assert_eq!(order, [(7, "b"), (9, "a"), (9, "c"), (9, "b")]);
        assert_eq!((log.broken, log.first_broken), (2, Some(2)));
        assert_eq!(told, text.len() as u64);
    }

    #[test]
    fn an_empty_log_has_no_line() {
        let log = Log::read(&b""[..], |_| ()).expect("memory can be read");
        assert!(log.requests.is_empty() && log.clients.is_empty());
        assert_eq!((log.broken, log.first_broken), (0, None));
    }

    #[test]
    fn the_rest_of_a_very_long_line_is_dropped() {
        let start = "h - - [01/Jan/1970:00:00:09 +0000] \"GET /\" 200 1 \"-\" \"";
        let mut text = start.as_bytes().to_vec();
        // The characters have two bytes each, so one of the two starts puts the limit into a
        // character.
        for pad in ["", "x"] {
            text.extend_from_slice(pad.as_bytes());
            text.extend("\u{e4}".repeat(LINE_LIMIT).bytes());
            text.extend_from_slice(b"\"\n");
            text.extend_from_slice(start.as_bytes());
        }
        text.push(b'\n');
        // A request that does not end within the limit does not parse.
        text.extend_from_slice(&start.as_bytes()[..40]);
        text.resize(text.len() + LINE_LIMIT, b'y');
        text.extend_from_slice(b"\" 200 1\n");
        let log = Log::read(&text[..], |_| ()).expect("memory can be read");
        assert_eq!((log.requests.len(), log.first_broken), (3, Some(4)));
    }
}
