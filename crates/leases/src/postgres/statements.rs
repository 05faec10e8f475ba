//! The statements of the calls.

use tourbillon_postgres::tokio_postgres::error::DbError;

/// The number of statements.
pub(super) const STATEMENTS: usize = Sql::Sweep as usize + 1;

/// Calls the usual functions for no names, so that the session has them ready.
pub(super) const WARM: &str = "\
    select from tourbillon_leases.acquire_1('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '', 0, true); \
    select tourbillon_leases.renew_1('{}', '{}', '{}', '{}', '{}', '{}', false); \
    select tourbillon_leases.release_1('{}', '{}', '{}', '{}', '', false, true)";

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
                "select a.answers, a.numbers, a.places \
                 from tourbillon_leases.acquire_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) a"
            }
            Sql::Renew => "select tourbillon_leases.renew_1($1, $2, $3, $4, $5, $6, false)",
            Sql::RenewUnlocked => "select tourbillon_leases.renew_1($1, $2, $3, $4, $5, $6, true)",
            Sql::GiveBack => "select tourbillon_leases.release_1($1, $2, $3, $4, $5, false, true)",
            Sql::GiveBackUnlocked => {
                "select tourbillon_leases.release_1($1, $2, $3, $4, $5, true, true)"
            }
            Sql::GiveBackQuietly => {
                "select tourbillon_leases.release_1($1, $2, $3, $4, $5, true, false)"
            }
            // `void` has no form of its own on the wire.
            Sql::Leave => "select from tourbillon_leases.leave_1($1, $2)",
            Sql::Detach => "select tourbillon_leases.detach_1($1, $2, $3, $4, $5)",
            Sql::Resume => {
                "select r.answer, r.number, r.terms \
                 from tourbillon_leases.resume_1($1, $2, $3, $4, $5, $6) r"
            }
            Sql::Holder => {
                "select h.owner, h.token, coalesce(h.data, ''), \
                 ceil(extract(epoch from least(h.length, h.rest)) * 1000000)::bigint, h.mode, h.holders \
                 from ( \
                   select l.owner, l.token, l.data, l.length, l.ends - clock_timestamp() as rest, l.mode, \
                     1::bigint as holders \
                   from tourbillon_leases.lease l \
                   where l.name = $1 and l.owner is not null and l.ends > clock_timestamp() \
                   union all ( \
                     select s.owner, s.token, s.data, s.length, s.ends - clock_timestamp(), l.mode, \
                       count(*) over () \
                     from tourbillon_leases.lease l join tourbillon_leases.lease_share s on s.name = l.name \
                     where l.name = $1 and l.mode <> 0 and s.ends > clock_timestamp() \
                     order by s.ends desc limit 1 \
                   ) \
                 ) h"
            }
            // The names behind $1, or from it on if $2, and before $3. It looks at $4 of them, and
            // tells of the last one, too, so that the next call goes on behind it.
            Sql::List => {
                "with seen as materialized ( \
                   select l.name, l.owner, l.token, l.data, l.length, l.ends - clock_timestamp() as rest, \
                     l.mode, row_number() over (order by l.name) as n \
                   from tourbillon_leases.lease l \
                   where l.name >= $1 and ($2 or l.name > $1) and l.name < $3 \
                   order by l.name limit $4 \
                 ), held as ( \
                   select s.name, s.owner, s.token, s.data, s.length, s.rest, s.mode, 1::bigint as holders, s.n \
                   from seen s where s.owner is not null and s.rest > interval '0' \
                   union all \
                   select s.name, h.owner, h.token, h.data, h.length, h.rest, s.mode, h.holders, s.n \
                   from seen s, lateral ( \
                     select o.owner, o.token, o.data, o.length, o.ends - clock_timestamp() as rest, \
                       count(*) over () as holders \
                     from tourbillon_leases.lease_share o \
                     where o.name = s.name and o.ends > clock_timestamp() order by o.ends desc limit 1 \
                   ) h \
                   where s.mode <> 0 \
                 ) \
                 select s.name, coalesce(h.owner, ''), coalesce(h.token, 0), coalesce(h.data, ''), \
                   coalesce(ceil(extract(epoch from least(h.length, h.rest)) * 1000000), 0)::bigint, \
                   s.mode, coalesce(h.holders, 0), s.n \
                 from seen s left join held h on h.n = s.n \
                 where h.n is not null or s.n = (select max(e.n) from seen e) \
                 order by s.name"
            }
            Sql::Wait => {
                "select tourbillon_leases.wait_1(), m.longest, \
                 has_table_privilege('tourbillon_leases.lease', 'insert') \
                 and has_table_privilege('tourbillon_leases.lease', 'update') \
                 and has_table_privilege('tourbillon_leases.lease_share', 'insert') \
                 and has_table_privilege('tourbillon_leases.lease_share', 'update') \
                 and has_table_privilege('tourbillon_leases.lease_share', 'delete') \
                 from tourbillon_leases.meta m"
            }
            Sql::Sweep => "select tourbillon_leases.sweep_1($1, $2)",
        }
    }
}
