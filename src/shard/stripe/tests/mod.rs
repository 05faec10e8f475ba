//! Tests of a whole stripe.

mod claims;
mod enumerate;
mod exhausted;
mod idle;
mod portions;
