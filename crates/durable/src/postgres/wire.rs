//! The values of this crate in PostgreSQL's binary format.

use std::error::Error;
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use crate::store::{StoreTime, micros};

type Failed = Box<dyn Error + Sync + Send>;

/// The start of the year 2000, from which PostgreSQL counts, in microseconds since 1970.
const EPOCH: i64 = 946_684_800_000_000;

/// The first and the last time that a `timestamptz` has, in microseconds since 1970. The values
/// beyond them mean infinity.
const FIRST: i64 = -210_866_803_200_000_000;
const LAST: i64 = 9_223_371_331_199_999_999 - 1_000_000_000_000_000;

/// A `timestamptz`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time(pub(super) StoreTime);

impl ToSql for Time {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Failed> {
        out.put_i64(self.0.as_micros().clamp(FIRST, LAST) - EPOCH);
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Time {
    fn from_sql(_: &Type, mut raw: &'a [u8]) -> Result<Self, Failed> {
        if raw.len() != size_of::<i64>() {
            return Err("a timestamptz has eight bytes".into());
        }
        let micros = raw.get_i64().saturating_add(EPOCH);
        Ok(Time(StoreTime::from_micros(micros)))
    }

    accepts!(TIMESTAMPTZ);
}

/// An `interval` without days and months. One that is longer than all times is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span(pub(super) Duration);

impl ToSql for Span {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Failed> {
        out.put_i64(micros(self.0).min(StoreTime::LATEST.as_micros()));
        // The days, and the months.
        out.put_i32(0);
        out.put_i32(0);
        Ok(IsNull::No)
    }

    accepts!(INTERVAL);
    to_sql_checked!();
}

/// A `jsonb`, as text that the server parses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Json<'a>(pub(super) &'a str);

impl ToSql for Json<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Failed> {
        // The version of the format.
        out.put_u8(1);
        out.put_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    accepts!(JSONB);
    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: &dyn ToSql, type_: &Type) -> Vec<u8> {
        let mut out = BytesMut::new();
        value.to_sql_checked(type_, &mut out).expect("a value");
        out.to_vec()
    }

    #[test]
    fn a_time_comes_back_as_it_was_sent_and_stays_finite() {
        for micros in [0, -1, 1_700_000_000_123_456, StoreTime::LATEST.as_micros()] {
            let raw = written(&Time(StoreTime::from_micros(micros)), &Type::TIMESTAMPTZ);
            let back = Time::from_sql(&Type::TIMESTAMPTZ, &raw).expect("a time");
            assert_eq!(back.0.as_micros(), micros);
        }
        for micros in [i64::MIN, i64::MAX] {
            let raw = written(&Time(StoreTime::from_micros(micros)), &Type::TIMESTAMPTZ);
            let infinite = [i64::MIN, i64::MAX].map(i64::to_be_bytes);
            assert!(!infinite.iter().any(|infinite| infinite[..] == raw[..]));
        }
        assert!(Time::from_sql(&Type::TIMESTAMPTZ, &[0; 7]).is_err());
    }

    #[test]
    fn a_span_has_microseconds_alone_and_is_rounded_up() {
        let raw = written(&Span(Duration::from_nanos(1_500)), &Type::INTERVAL);
        assert_eq!(raw, [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
