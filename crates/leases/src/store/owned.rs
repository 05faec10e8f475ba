//! Owned copies of the arguments of calls, for the threads of a store.

use std::time::Duration;

use super::{Claim, Detach, Holding, Mode, Renewal, Resume, Secret};

/// An owned value that is lent to a call.
trait Lends<'a> {
    type Lent;

    fn of(lent: Self::Lent) -> Self;
    fn lend(&'a self) -> Self::Lent;
}

impl<'a> Lends<'a> for String {
    type Lent = &'a str;

    fn of(lent: &'a str) -> Self {
        lent.to_owned()
    }

    fn lend(&'a self) -> &'a str {
        self
    }
}

/// The text of a secret.
pub(super) struct SecretText(String);

impl<'a> Lends<'a> for SecretText {
    type Lent = Secret<'a>;

    fn of(lent: Secret<'a>) -> Self {
        SecretText(lent.reveal().to_owned())
    }

    fn lend(&'a self) -> Secret<'a> {
        Secret::new(&self.0)
    }
}

/// Makes the owned form of an argument. For plain values it only implements `Lends`.
macro_rules! owned {
    ($($plain:ty),*) => {
        $(impl Lends<'_> for $plain {
            type Lent = $plain;

            fn of(lent: $plain) -> Self {
                lent
            }

            fn lend(&self) -> $plain {
                *self
            }
        })*
    };
    ($own:ident of $lent:ident { $($field:ident: $type:ty,)* }) => {
        pub(super) struct $own {
            $($field: $type,)*
        }

        impl $own {
            pub(super) fn of(lent: &$lent<'_>) -> Self {
                $own {
                    $($field: Lends::of(lent.$field),)*
                }
            }

            pub(super) fn get(&self) -> $lent<'_> {
                $lent {
                    $($field: self.$field.lend(),)*
                }
            }
        }
    };
}

owned!(Duration, bool, u32, Mode);

owned!(OwnedClaim of Claim {
    name: String,
    owner: String,
    secret: SecretText,
    lease: Duration,
    waits: bool,
    waited: Duration,
    data: String,
    mode: Mode,
});

owned!(OwnedRenewal of Renewal {
    name: String,
    secret: SecretText,
    lease: Duration,
    holds: u32,
    never_shortens: bool,
    mode: Mode,
});

owned!(OwnedHolding of Holding {
    name: String,
    secret: SecretText,
    rest: Duration,
    mode: Mode,
});

owned!(OwnedDetach of Detach {
    name: String,
    secret: SecretText,
    ticket: SecretText,
    lease: Duration,
    terms: String,
});

owned!(OwnedResume of Resume {
    name: String,
    ticket: SecretText,
    owner: String,
    secret: SecretText,
    data: String,
});
