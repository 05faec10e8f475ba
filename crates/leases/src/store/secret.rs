//! What proves that a caller holds a name, or may resume it.

use std::fmt;

/// A text that only the holder of a name knows. It proves to a [store](crate::LeaseStore) who may
/// renew, release or detach the name. The ticket of a detached name is another one.
///
/// Stores keep and compare it. Nothing prints it: `Debug` leaves it out.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::Secret;
///
/// let secret = Secret::new("u7Hq");
/// assert_eq!(secret.reveal(), "u7Hq");
/// assert_eq!(format!("{secret:?}"), "Secret(..)");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret<'a>(&'a str);

impl<'a> Secret<'a> {
    /// Creates a secret of a text that nobody can guess.
    #[must_use]
    pub const fn new(text: &'a str) -> Self {
        Secret(text)
    }

    /// Returns the text, for the store that keeps or compares it.
    #[must_use]
    pub const fn reveal(self) -> &'a str {
        self.0
    }
}

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A secret of this crate: 128 random bits as hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnedSecret([u8; OwnedSecret::DIGITS]);

impl OwnedSecret {
    pub(crate) const DIGITS: usize = 32;

    /// Draws a secret.
    ///
    /// # Panics
    ///
    /// If the system has no random numbers. A hash map of the standard library panics then, too.
    #[cfg(not(loom))]
    pub(crate) fn random() -> Self {
        let mut bytes = [0; Self::DIGITS / 2];
        getrandom::fill(&mut bytes).expect("the system has random numbers");
        let mut digits = [0; Self::DIGITS];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
            const HEX: [u8; 16] = *b"0123456789abcdef";
            pair.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        OwnedSecret(digits)
    }

    /// Reads a secret that this crate has written, or returns `None` if the text is none.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let digits: [u8; Self::DIGITS] = text.as_bytes().try_into().ok()?;
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        digits.iter().all(is_digit).then_some(OwnedSecret(digits))
    }

    pub(crate) fn get(&self) -> Secret<'_> {
        Secret(std::str::from_utf8(&self.0).expect("it has hexadecimal digits alone"))
    }
}

impl fmt::Debug for OwnedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_secret_is_drawn_anew_and_can_be_read_again() {
        let (one, other) = (OwnedSecret::random(), OwnedSecret::random());
        assert!(one != other);
        assert_eq!(OwnedSecret::read(one.get().reveal()), Some(one));
        assert_eq!(format!("{one:?}"), "Secret(..)");
    }

    #[test]
    fn other_texts_are_no_secrets() {
        let text = OwnedSecret::random().get().reveal().to_owned();
        for wrong in [
            "",
            "x",
            &text[1..],
            &format!("{text}0"),
            &format!("{}G", &text[1..]),
            &format!("{}A", &text[1..]),
            &format!("{}ü", &text[2..]),
        ] {
            assert_eq!(OwnedSecret::read(wrong), None, "{wrong}");
        }
    }
}
