//! Tests of a whole stripe.

mod claims;
mod enumerate;
mod idle;
mod worn;
