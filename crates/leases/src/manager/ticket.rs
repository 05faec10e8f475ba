//! The ticket of a lock on its way from one process to another, and its text.

use std::fmt;
use std::str::FromStr;

use crate::store::{LONGEST_NAME, OwnedSecret};
use crate::sync::{Arc, Mutex};

/// A lock on its way to another process. Made by [`LeaseGuard::detach`](crate::LeaseGuard::detach),
/// and used by [`Leases::resume`](crate::Leases::resume).
///
/// It can be written as text without spaces and read again. Whoever has the text can take the
/// lock over, once, so treat it like a password. The text has the name of the lock and a random
/// secret. All else stays in the store. `Debug` shows the name alone.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{LeaseTicket, Leases, MemoryStore};
///
/// let leases = Leases::new(MemoryStore::new())?;
/// let ticket = leases.lock("report").wait()?.detach().wait()?;
/// let text = ticket.to_string(); // send it to another process
/// let received: LeaseTicket = text.parse()?;
/// assert_eq!(received, ticket);
/// assert_eq!(received.name(), "report");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "without it the lock stays locked until its lease has run out"]
pub struct LeaseTicket {
    name: String,
    secret: OwnedSecret,
    /// Who has tried to resume the lock, if the answer was lost. The next attempt is made for the
    /// same one, so that the store answers it again.
    tried: Arc<Mutex<Option<Claimant>>>,
}

/// The next owner of a lock.
pub(super) struct Claimant {
    pub(super) owner: String,
    pub(super) secret: OwnedSecret,
}

/// The first field of a ticket's text. The number is that of the format.
const MARK: &str = "tourbillon-lease-2";
/// What the first field of all formats begins with.
const ANY_MARK: &str = "tourbillon-lease-";

impl LeaseTicket {
    pub(super) fn new(name: String, secret: OwnedSecret) -> Self {
        LeaseTicket {
            name,
            secret,
            tried: Arc::default(),
        }
    }

    /// Returns a copy. Not `Clone`, since a ticket is of use once.
    pub(super) fn copy(&self) -> Self {
        LeaseTicket {
            name: self.name.clone(),
            secret: self.secret,
            tried: Arc::clone(&self.tried),
        }
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn secret(&self) -> &OwnedSecret {
        &self.secret
    }

    pub(super) fn tried(&self) -> &Mutex<Option<Claimant>> {
        &self.tried
    }
}

impl PartialEq for LeaseTicket {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, self.secret) == (&other.name, other.secret)
    }
}

impl Eq for LeaseTicket {}

impl fmt::Debug for LeaseTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseTicket")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Writes the ticket, with its secret, as one word of printable ASCII characters.
impl fmt::Display for LeaseTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK},{},", self.secret.get().reveal())?;
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
        let mut fields = text.split(',');
        let mark = fields.next().unwrap_or_default();
        if mark != MARK {
            return Err(ParseTicketError(match mark.starts_with(ANY_MARK) {
                true => {
                    "another version of this crate has written it; this version does not take it"
                }
                false => "it does not begin with `tourbillon-lease-2`",
            }));
        }
        let (Some(secret), Some(name), None) = (fields.next(), fields.next(), fields.next()) else {
            return Err(ParseTicketError("it does not have three fields"));
        };
        let secret = OwnedSecret::read(secret);
        let secret = secret.ok_or(ParseTicketError("its secret is not one of this crate"))?;
        let possible = |name: &String| (1..=LONGEST_NAME).contains(&name.len());
        let name = decode(name).filter(possible);
        let name = name.ok_or(ParseTicketError("its name is invalid"))?;
        Ok(LeaseTicket::new(name, secret))
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
        LeaseTicket::new(name.to_owned(), OwnedSecret::random())
    }

    fn error(text: &str) -> String {
        text.parse::<LeaseTicket>().unwrap_err().to_string()
    }

    #[test]
    fn a_ticket_survives_its_text() {
        for name in ["a", "a,b", "100%", "%2C", "two words", "zwei\nZeilen", "ü"] {
            let ticket = ticket(name);
            let text = ticket.to_string();
            assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
            assert_eq!(text.parse(), Ok(ticket));
        }
    }

    #[test]
    fn only_its_text_shows_the_secret() {
        let ticket = ticket("a");
        let text = ticket.to_string();
        let secret = text.split(',').nth(1).unwrap();
        assert_eq!(format!("{ticket:?}"), "LeaseTicket { name: \"a\", .. }");
        let error = error(&text.replace(secret, &secret.to_uppercase().repeat(2)));
        assert!(!error.contains(&secret.to_uppercase()), "{error}");
    }

    #[test]
    fn every_changed_field_is_an_error() {
        let text = ticket("a").to_string();
        let fields: Vec<&str> = text.split(',').collect();
        for at in 0..2 {
            for hostile in ["x", "", "18446744073709551615", "%00", "-1"] {
                let mut wrong = fields.clone();
                wrong[at] = hostile;
                error(&wrong.join(","));
            }
        }
        for wrong in [
            "",
            "a,b",
            &fields[..2].join(","),
            &format!("{},", fields[..2].join(",")),
            &format!("{text},"),
            &format!("{text},b"),
            &format!("{text}%"),
            &format!("{text}%zz"),
            // Bytes that are no UTF-8.
            &format!("{text}%FF"),
        ] {
            error(wrong);
        }
    }

    #[test]
    fn texts_of_the_first_version_say_so() {
        let text = "tourbillon-lease-1,7,rs,30000000000,0,0,0,host-1:2:3,a";
        let error = error(text);
        assert!(error.contains("another version"), "{error}");
    }
}
