//! A guess: whether all keys of the next calls are new.
//!
//! The server need not look for keys that are new before it inserts them, which is a sixth of its
//! work. A wrong guess costs an attempt in vain.

/// The guess of one connection. After a wrong guess some calls go without one: 2 at first, twice as
/// many after each further wrong guess, and at most 1,024.
#[derive(Debug, Default)]
pub(super) struct Guess {
    /// The number of wrong guesses since the last right one, up to a bound.
    wrong: u32,
    /// The number of calls that go without a guess.
    pause: u32,
}

/// The bound of [`Guess::wrong`].
const MOST_WRONG: u32 = 10;

impl Guess {
    /// Whether the keys of this call are taken for new ones. The outcome must be learned.
    pub(super) fn is_new(&mut self) -> bool {
        let guesses = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        guesses
    }

    pub(super) fn learn(&mut self, was_right: bool) {
        if was_right {
            self.wrong = 0;
        } else {
            self.wrong = (self.wrong + 1).min(MOST_WRONG);
            self.pause = 1 << self.wrong;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of guesses in 100,000 calls.
    fn guesses(is_right: impl Fn(u32) -> bool) -> usize {
        let mut guess = Guess::default();
        let mut guesses = 0;
        for call in 0..100_000 {
            if guess.is_new() {
                guesses += 1;
                guess.learn(is_right(call));
            }
        }
        guesses
    }

    #[test]
    fn a_guess_that_is_always_wrong_is_made_seldom_and_a_right_one_always() {
        assert_eq!(guesses(|_| true), 100_000);
        assert!((90..110).contains(&guesses(|_| false)));
        // Known keys alone, until new ones come.
        assert!(guesses(|call| call >= 50_000) > 48_000);
    }
}
