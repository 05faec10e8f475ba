//! Generates the lines of an access log.
//!
//! Clients take steps through a few days from the end of February of a leap year. A step is mostly
//! a few minutes, sometimes nothing, half a day, or exactly 30 minutes, 1 hour or 4 hours, or a
//! second less or more. So at these idle times there are gaps on, below and above the border.
//!
//! Four servers write into one log, each in a time zone and a format of its own. A line is written
//! when its request ends, and some take minutes, so instants go back in time. One line in fifty is
//! broken, with the kinds of [`broken_line`] in turn.

use crate::rng::Rng;

/// 28 February 2024, 20:00 UTC.
const START: i64 = 1_709_150_400;

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// A log, and what a parser must find in it.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) bytes: Vec<u8>,
    /// Seconds since 1970 in UTC and the client of each whole line, in the order of the lines.
    pub(crate) requests: Vec<(i64, String)>,
    /// The numbers of the broken lines, counted from 1.
    pub(crate) broken: Vec<u64>,
}

/// The format of a server.
struct Server {
    zone_minutes: i64,
    combined: bool,
    end: &'static str,
}

const SERVERS: [Server; 4] = [
    Server {
        zone_minutes: 0,
        combined: true,
        end: "\n",
    },
    Server {
        zone_minutes: 120,
        combined: false,
        end: "\n",
    },
    Server {
        zone_minutes: -7 * 60,
        combined: true,
        end: "\n",
    },
    Server {
        zone_minutes: 5 * 60 + 45,
        combined: false,
        end: "\r\n",
    },
];

/// Makes a log of `lines` lines.
pub(crate) fn generate(seed: u64, lines: u64) -> Made {
    let mut rng = Rng::new(seed);
    let is_broken: Vec<bool> = (0..lines).map(|_| rng.below(50) == 0).collect();
    let whole = is_broken.iter().filter(|&&broken| !broken).count();
    let mut requests = arrivals(&mut rng, whole, lines / 25 + 1).into_iter();

    let mut made = Made {
        bytes: Vec::new(),
        requests: Vec::new(),
        broken: Vec::new(),
    };
    for (number, broken) in (1..).zip(is_broken) {
        if broken {
            let kind = made.broken.len();
            made.bytes.extend(broken_line(&mut rng, kind));
            made.bytes.push(b'\n');
            made.broken.push(number);
        } else {
            let (instant, client) = requests.next().expect("a request for each whole line");
            made.bytes
                .extend(whole_line(&mut rng, instant, &client).bytes());
            made.requests.push((instant, client));
        }
    }
    made
}

/// Returns `count` requests of `clients` clients, in the order in which they end.
fn arrivals(rng: &mut Rng, count: usize, clients: u64) -> Vec<(i64, String)> {
    let mut next: Vec<i64> = (0..clients)
        .map(|_| START + rng.below(2 * 86_400) as i64)
        .collect();
    let mut requests: Vec<(i64, i64, String)> = (0..count)
        .map(|_| {
            // Half of the requests come from an eighth of the clients.
            let among = if rng.below(2) == 0 {
                clients.div_ceil(8)
            } else {
                clients
            };
            let client = rng.below(among);
            let instant = next[client as usize];
            next[client as usize] += step(rng);
            let took = if rng.below(10) == 0 {
                rng.below(900) as i64
            } else {
                0
            };
            (instant + took, instant, name(client))
        })
        .collect();
    requests.sort_by_key(|&(end, ..)| end);
    requests
        .into_iter()
        .map(|(_, instant, client)| (instant, client))
        .collect()
}

/// Returns the seconds from one request of a client to its next.
fn step(rng: &mut Rng) -> i64 {
    let border = [1_800, 1_800, 3_600, 3_600, 14_400][rng.below(5) as usize];
    match rng.below(100) {
        0..=5 => 0,
        6..=69 => 1 + rng.below(600) as i64,
        70..=84 => border,
        85..=88 => border - 1,
        89..=92 => border + 1,
        _ => 1 + rng.below(43_200) as i64,
    }
}

fn name(client: u64) -> String {
    let host = client / 4 % 250 + 1;
    match client % 4 {
        0 => format!("192.0.2.{host}"),
        1 => format!("198.51.100.{host}"),
        2 => format!("2001:db8::{client:x}"),
        _ => format!("host-{client}.example.net"),
    }
}

fn pick<'a>(rng: &mut Rng, from: &[&'a str]) -> &'a str {
    from[rng.below(from.len() as u64) as usize]
}

/// Returns a line up to its bytes, including the space before them.
fn up_to_bytes(rng: &mut Rng, stamp: &str, client: &str) -> String {
    let user = pick(rng, &["-", "-", "-", "alice", "bob", "carol smith"]);
    let request = match rng.below(8) {
        0 => format!("POST /items/{} HTTP/1.1", rng.below(400)),
        1 => format!("GET /search?q=\\\"wheel\\\"&page={} HTTP/1.1", rng.below(9)),
        2 => "-".to_owned(),
        3 => "GET /caf\u{e9}/men\u{fc} HTTP/1.1".to_owned(),
        _ => format!("GET /pages/{}.html HTTP/1.1", rng.below(90)),
    };
    let status = pick(rng, &["200", "200", "200", "304", "404", "500"]);
    format!("{client} - {user} [{stamp}] \"{request}\" {status} ")
}

fn whole_line(rng: &mut Rng, instant: i64, client: &str) -> String {
    let server = &SERVERS[rng.below(4) as usize];
    let mut line = up_to_bytes(rng, &timestamp(instant, server.zone_minutes), client);
    if rng.below(8) == 0 {
        line.push('-');
    } else {
        line += &rng.below(90_000).to_string();
    }
    if server.combined {
        let referer = pick(
            rng,
            &["-", "https://www.example.com/", "https://example.org/a?b=c"],
        );
        let agent = pick(
            rng,
            &["Reader/1.0", "Crawler/2.3 (+https://example.com/bot)", "-"],
        );
        line += &format!(" \"{referer}\" \"{agent}\"");
    }
    line + server.end
}

/// Returns a line that does not parse, without its newline. It is empty, binary, cut off, not
/// UTF-8, has a day that does not exist, or is a message of another program.
fn broken_line(rng: &mut Rng, kind: usize) -> Vec<u8> {
    let client = name(rng.below(40));
    let stamp = timestamp(START + rng.below(86_400) as i64, 0);
    match kind % 6 {
        0 => Vec::new(),
        1 => {
            let mut bytes: Vec<u8> = (0..40).map(|_| rng.below(256) as u8).collect();
            bytes.retain(|&byte| byte != b'\n');
            bytes.push(0);
            bytes
        }
        2 => {
            let line = up_to_bytes(rng, &stamp, &client);
            let cut = 1 + rng.below(line.len() as u64) as usize;
            line.into_bytes()[..cut].to_vec()
        }
        3 => {
            let mut bytes = b"b\xfccher.example.org".to_vec();
            bytes.extend(up_to_bytes(rng, &stamp, "").bytes());
            bytes.extend(b"512");
            bytes
        }
        4 => (up_to_bytes(rng, "30/Feb/2024:12:00:00 +0000", &client) + "512").into_bytes(),
        _ => b"-- log rotated --".to_vec(),
    }
}

/// Formats a time like `28/Feb/2024:20:00:00 +0000`. This is the inverse of the parser, computed in
/// another way.
fn timestamp(instant: i64, zone_minutes: i64) -> String {
    let local = instant + zone_minutes * 60;
    let (mut day, second) = (local / 86_400, local % 86_400);
    let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let mut year = 1970;
    while day >= 365 + i64::from(is_leap(year)) {
        day -= 365 + i64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + i64::from(is_leap(year));
    let mut month = 0;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let (sign, zone) = (if zone_minutes < 0 { '-' } else { '+' }, zone_minutes.abs());
    format!(
        "{:02}/{}/{year}:{hour:02}:{minute:02}:{second:02} {sign}{:02}{:02}",
        day + 1,
        MONTHS[month],
        zone / 60,
        zone % 60
    )
}
