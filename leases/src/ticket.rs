//! The ticket of a lock on its way from one process to another, and its text.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A lock on its way to another process. Made by [`LeaseGuard::detach`](super::LeaseGuard::detach),
/// and used by [`Leases::resume`](super::Leases::resume).
///
/// It can be written as text without spaces and read again. Whoever has the text can take the
/// lock over, so treat it like a password.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{LeaseTicket, Leases, MemoryStore};
///
/// let leases = Leases::new(MemoryStore::new())?;
/// let ticket = leases.lock("report")?.detach()?;
/// let text = ticket.to_string(); // send it to another process
/// let received: LeaseTicket = text.parse()?;
/// assert_eq!(received, ticket);
/// assert_eq!(received.name(), "report");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(PartialEq, Eq, Debug)]
#[must_use = "without it the lock stays locked until its lease has run out"]
pub struct LeaseTicket {
    pub(super) name: String,
    pub(super) owner: String,
    pub(super) token: u64,
    pub(super) lease: Duration,
    pub(super) renewed: bool,
    /// Whether an attempt to acquire it may still arrive at the store.
    pub(super) unsure: bool,
    /// How long the lock stays locked for others in any case.
    pub(super) stays: Duration,
    pub(super) feed: Option<Duration>,
    /// The rest of the longest hold.
    pub(super) max_hold: Option<Duration>,
}

/// The first field of a ticket's text. The number is that of the format.
const MARK: &str = "tourbillon-lease-1";

impl LeaseTicket {
    /// Returns a copy. Not `Clone`, since a ticket is meant to be used once.
    pub(super) fn copy(&self) -> Self {
        LeaseTicket {
            name: self.name.clone(),
            owner: self.owner.clone(),
            ..*self
        }
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the fencing token, which stays the same; see
    /// [`LeaseGuard::fencing_token`](super::LeaseGuard::fencing_token).
    #[must_use]
    pub fn fencing_token(&self) -> u64 {
        self.token
    }
}

/// Writes the ticket as one word of printable ASCII characters.
impl fmt::Display for LeaseTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = |time: Option<Duration>| time.map_or(0, |time| time.as_nanos());
        write!(f, "{MARK},{},", self.token)?;
        f.write_str(if self.renewed { "r" } else { "f" })?;
        f.write_str(if self.unsure { "u," } else { "s," })?;
        for time in [Some(self.lease), Some(self.stays), self.feed, self.max_hold] {
            write!(f, "{},", nanos(time))?;
        }
        encode(&self.owner, f)?;
        f.write_str(",")?;
        encode(&self.name, f)
    }
}

/// Writes everything that is not printable, commas and `%` as `%XX`.
fn encode(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for byte in text.bytes() {
        match byte {
            b',' | b'%' => write!(f, "%{byte:02X}")?,
            byte if byte.is_ascii_graphic() => fmt::Write::write_char(f, char::from(byte))?,
            byte => write!(f, "%{byte:02X}")?,
        }
    }
    Ok(())
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

impl FromStr for LeaseTicket {
    type Err = ParseTicketError;

    fn from_str(text: &str) -> Result<Self, ParseTicketError> {
        let fields: Vec<&str> = text.split(',').collect();
        let [
            mark,
            token,
            flags,
            lease,
            stays,
            feed,
            max_hold,
            owner,
            name,
        ] = fields[..]
        else {
            return Err(ParseTicketError("it does not have nine fields"));
        };
        if mark != MARK {
            return Err(ParseTicketError(
                "it does not begin with `tourbillon-lease-1`",
            ));
        }
        let wrong = || ParseTicketError("one of its fields is invalid");
        let time = |field: &str| {
            let nanos: u64 = field.parse().ok()?;
            Some(Duration::from_nanos(nanos))
        };
        let some = |time: Duration| (!time.is_zero()).then_some(time);
        let (renewed, unsure) = match flags {
            "rs" => (true, false),
            "ru" => (true, true),
            "fs" => (false, false),
            "fu" => (false, true),
            _ => return Err(wrong()),
        };
        Ok(LeaseTicket {
            name: decode(name).ok_or_else(wrong)?,
            owner: decode(owner).ok_or_else(wrong)?,
            token: token.parse().map_err(|_| wrong())?,
            lease: time(lease).ok_or_else(wrong)?,
            renewed,
            unsure,
            stays: time(stays).ok_or_else(wrong)?,
            feed: some(time(feed).ok_or_else(wrong)?),
            max_hold: some(time(max_hold).ok_or_else(wrong)?),
        })
    }
}

/// The text is not that of a [`LeaseTicket`]. The error does not show the text, since a ticket is a
/// secret.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::LeaseTicket;
///
/// assert!("something else".parse::<LeaseTicket>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseTicketError(&'static str);

impl fmt::Display for ParseTicketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the text is not a ticket of this version: {}", self.0)
    }
}

impl std::error::Error for ParseTicketError {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ticket(name: &str) -> LeaseTicket {
        LeaseTicket {
            name: name.to_owned(),
            owner: "host-1:2:3".to_owned(),
            token: u64::MAX,
            lease: Duration::from_secs(30),
            renewed: true,
            unsure: false,
            stays: Duration::ZERO,
            feed: None,
            max_hold: Some(Duration::from_nanos(1)),
        }
    }

    #[test]
    fn a_ticket_survives_its_text() {
        for name in [
            "a",
            "",
            "a,b",
            "100%",
            "%2C",
            "two words",
            "zwei\nZeilen",
            "ü",
        ] {
            for (renewed, unsure) in [(true, true), (true, false), (false, true), (false, false)] {
                let ticket = LeaseTicket {
                    renewed,
                    unsure,
                    feed: renewed.then_some(Duration::from_millis(5)),
                    stays: Duration::from_millis(7),
                    ..ticket(name)
                };
                let text = ticket.to_string();
                assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
                assert_eq!(text.parse(), Ok(ticket));
            }
        }
    }

    #[test]
    fn every_changed_field_is_an_error() {
        let text = ticket("a").to_string();
        let fields: Vec<&str> = text.split(',').collect();
        for at in 0..7 {
            let mut wrong = fields.clone();
            wrong[at] = "x";
            assert!(wrong.join(",").parse::<LeaseTicket>().is_err(), "{at}");
        }
        for text in [
            "",
            "a,b",
            &format!("{text},"),
            &format!("{text}%"),
            &format!("{text}%zz"),
        ] {
            assert!(text.parse::<LeaseTicket>().is_err(), "{text}");
        }
        // Bytes that are no UTF-8.
        let error = format!("{text}%FF").parse::<LeaseTicket>().unwrap_err();
        assert!(error.to_string().contains("invalid"), "{error}");
    }
}
