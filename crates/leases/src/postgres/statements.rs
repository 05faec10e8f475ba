//! The statements of the calls.

use tourbillon_postgres::tokio_postgres::error::DbError;

/// The number of statements.
pub(super) const STATEMENTS: usize = Sql::Sweep as usize + 1;

/// Calls the usual functions for no names, so that the session has them ready.
pub(super) const WARM: &str = "\
    select from tourbillon_leases.acquire_1('{}', '{}', '{}', '{}', '{}', '{}', '{}', '', 0, true); \
    select tourbillon_leases.renew_1('{}', '{}', '{}', '{}', '{}', false); \
    select tourbillon_leases.release_1('{}', '{}', '{}', '', false, true)";

/// A statement, which each connection prepares when it is used first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sql {
    Claim,
    Renew,
    /// Without waiting for rows that somebody has locked.
    RenewUnlocked,
    GiveBack,
    GiveBackUnlocked,
    /// Without an announcement.
    GiveBackQuietly,
    Leave,
    Detach,
    Resume,
    Holder,
    List,
    Wait,
    Sweep,
}

impl Sql {
    /// The form with the same values which may succeed after this error of the server, if there is one.
    pub(super) fn after(self, error: &DbError) -> Option<Sql> {
        // A row was locked while a function ran. Announcements are queued at the commit, which waits
        // for those of other databases, too.
        let in_function = error.where_().is_some();
        match (self, error.code().code()) {
            (Sql::Renew, "55P03") => Some(Sql::RenewUnlocked),
            (Sql::GiveBack, "55P03") if in_function => Some(Sql::GiveBackUnlocked),
            (Sql::GiveBack | Sql::GiveBackUnlocked, "55P03" | "54000") if !in_function => {
                Some(Sql::GiveBackQuietly)
            }
            _ => None,
        }
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Sql::Claim => {
                "select a.answers, a.numbers \
                 from tourbillon_leases.acquire_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) a"
            }
            Sql::Renew => "select tourbillon_leases.renew_1($1, $2, $3, $4, $5, false)",
            Sql::RenewUnlocked => "select tourbillon_leases.renew_1($1, $2, $3, $4, $5, true)",
            Sql::GiveBack => "select tourbillon_leases.release_1($1, $2, $3, $4, false, true)",
            Sql::GiveBackUnlocked => {
                "select tourbillon_leases.release_1($1, $2, $3, $4, true, true)"
            }
            Sql::GiveBackQuietly => {
                "select tourbillon_leases.release_1($1, $2, $3, $4, true, false)"
            }
            // `void` has no form of its own on the wire.
            Sql::Leave => "select from tourbillon_leases.leave_1($1, $2)",
            Sql::Detach => "select tourbillon_leases.detach_1($1, $2, $3, $4, $5)",
            Sql::Resume => {
                "select r.answer, r.number, r.terms \
                 from tourbillon_leases.resume_1($1, $2, $3, $4, $5, $6) r"
            }
            Sql::Holder => {
                "select l.owner, l.token, coalesce(l.data, ''), \
                 ceil(extract(epoch from least(l.length, l.ends - clock_timestamp())) * 1000000)::bigint \
                 from tourbillon_leases.lease l \
                 where l.name = $1 and l.owner is not null and l.ends > clock_timestamp()"
            }
            // The names behind $1, or from it on if $2, and before $3. It looks at $4 of them, and
            // tells of the last one, too, so that the next call goes on behind it.
            Sql::List => {
                "with seen as materialized ( \
                   select l.name, l.owner, l.token, l.data, l.length, l.ends - clock_timestamp() as rest, \
                     row_number() over (order by l.name) as n \
                   from tourbillon_leases.lease l \
                   where l.name >= $1 and ($2 or l.name > $1) and l.name < $3 \
                   order by l.name limit $4 \
                 ) \
                 select s.name, coalesce(s.owner, ''), s.token, coalesce(s.data, ''), \
                   ceil(extract(epoch from least(s.length, s.rest)) * 1000000)::bigint, \
                   s.owner is not null and s.rest > interval '0', s.n \
                 from seen s \
                 where s.owner is not null and s.rest > interval '0' \
                   or s.n = (select max(e.n) from seen e) \
                 order by s.name"
            }
            Sql::Wait => {
                "select tourbillon_leases.wait_1(), m.longest, \
                 has_table_privilege('tourbillon_leases.lease', 'insert') \
                 and has_table_privilege('tourbillon_leases.lease', 'update') \
                 from tourbillon_leases.meta m"
            }
            Sql::Sweep => "select tourbillon_leases.sweep_1($1, $2)",
        }
    }
}
