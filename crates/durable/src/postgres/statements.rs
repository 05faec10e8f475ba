//! The statements of a connection.
//!
//! Those that write several rows call functions of the server, which are in `functions.sql`.
//!
//! The last parameter of each is the identity of the tables, which the connection adds. It is asked
//! for in a condition that names no row, so the server decides it first. `OPEN_WRITES` has none: a
//! poll follows it.

pub(super) const WRITE: &str = "select n, answer, due, other, shard, running, attempt \
     from tourbillon.write_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) where (select tourbillon.same_1($11))";

pub(super) const WRITE_EACH: &str = "select n, answer, due, other, shard, running, attempt, code, error \
     from tourbillon.write_each_1($1, $2, $3, $4, $5, $6, $7, $8) where (select tourbillon.same_1($9))";

pub(super) const PAYLOAD_ERRORS: &str =
    "select tourbillon.payload_errors_1($1) where (select tourbillon.same_1($2))";

/// Whether the server has a number for another transaction. It fails if not.
pub(super) const NUMBER: &str =
    "select pg_current_xact_id()::text where (select tourbillon.same_1($1))";

/// The columns of a [`Timer`]. A row that a gone node has left behind cancelled is none, and one
/// that follows the run of a gone node has not run yet.
macro_rules! timer {
    ($from:literal) => {
        timer!("", $from)
    };
    ($with:literal, $from:literal) => {
        concat!(
            $with,
            "select t.queue, t.key, t.due, t.planned, \
             case when l.live or not t.follows then t.attempt else 0 end, \
             case when l.live or not t.follows then t.fails else 0 end, \
             case when l.live or not t.follows then t.crashes else 0 end, \
             case when l.live then t.claimed end, t.cancelled, t.follows and l.live, t.payload::text, t.meta::text ",
            $from
        )
    };
}

pub(super) const GET: &str = timer!(
    "from tourbillon.timer t cross join lateral (select t.claim is not null and exists ( \
     select from tourbillon.node d where d.epoch = t.claim and d.gone is null) as live) l \
     where t.queue = $1 and t.key = $2 and (l.live or not t.cancelled) and (select tourbillon.same_1($3))"
);

/// Each shard is in order, and has no more of the page than the page has rows. The page ends when
/// the payloads of the rows before have so many bytes.
pub(super) const LIST: &str = timer!(
    "with living as materialized (select d.epoch from tourbillon.node d where d.gone is null) ",
    "from (select t.*, sum(t.bytes) over (order by t.due, t.key) - t.bytes as before from ( \
     select t.* from generate_series(0, 63) s(shard) cross join lateral ( \
     select t.queue, t.key, t.due, t.planned, t.attempt, t.fails, t.crashes, t.claim, t.claimed, \
     t.cancelled, t.follows, t.bytes, t.payload, t.meta, l.live from tourbillon.timer t \
     cross join lateral (select t.claim is not null and t.claim in (select epoch from living) as live) l \
     where t.queue = $1 and t.shard = s.shard and t.due >= greatest($2::timestamptz, $4) and t.due < $3 \
     and ($4::timestamptz is null or (t.due, t.key) > ($4, $5)) and (l.live or not t.cancelled) \
     order by t.due, t.key limit $6) t order by t.due, t.key limit $6) t) t \
     cross join lateral (select t.live) l \
     where t.before < $7 and (select tourbillon.same_1($8)) order by t.due, t.key"
);

pub(super) const COUNTS: &str = "with now as materialized (select clock_timestamp() as now), \
     living as materialized (select d.epoch from tourbillon.node d where d.gone is null), timers as ( \
     select t.queue, \
     count(*) filter (where not l.live and t.due > (select now from now)) as waiting, \
     count(*) filter (where not l.live and t.due <= (select now from now)) as overdue, \
     count(*) filter (where l.live) as running, min(t.due) filter (where not l.live) as oldest \
     from tourbillon.timer t cross join lateral ( \
     select t.claim is not null and t.claim in (select epoch from living) as live) l \
     where l.live or not t.cancelled group by t.queue \
     ), letters as (select d.queue, count(*) as dead from tourbillon.dead d group by d.queue \
     ), paused as (select q.name as queue from tourbillon.queue q where q.paused) \
     select queue, coalesce(t.waiting, 0), coalesce(t.overdue, 0), coalesce(t.running, 0), \
     coalesce(d.dead, 0), p.queue is not null, t.oldest \
     from timers t full join letters d using (queue) full join paused p using (queue) \
     where (select tourbillon.same_1($1)) order by queue";

/// The page ends as a list does.
pub(super) const DEAD: &str = "select d.id, d.queue, d.key, d.planned, d.at, d.attempt, d.fails, d.crashes, \
     d.error, d.payload::text, d.meta::text from ( \
     select d.*, sum(d.bytes) over (order by d.id) - d.bytes as before from ( \
     select * from tourbillon.dead d where d.queue = $1 and d.id > $2 order by d.id limit $3) d) d \
     where d.before < $4 and (select tourbillon.same_1($5)) order by d.id";

pub(super) const REVIVE: &str = "select answer, queue, key from tourbillon.revive_1($1, $2) \
     where (select tourbillon.same_1($3))";

pub(super) const PAUSE: &str = "insert into tourbillon.queue (name, paused) \
     select $1::text, $2::boolean where (select tourbillon.same_1($3)) \
     on conflict (name) do update set paused = excluded.paused";

pub(super) const JOIN: &str = "insert into tourbillon.node (epoch, name, queues) \
     select $1::bigint, $2::text, $3::text[] where (select tourbillon.same_1($4)) \
     on conflict (epoch) do update set queues = excluded.queues, list = node.list + 1 \
     returning beat, clock_timestamp()";

/// The time of the statement was taken before the number of its transaction. A beat that is less
/// than the least one is of an older state: see [`Beats`](crate::store::Beats).
pub(super) const BEAT: &str = "update tourbillon.node set beat = beat + 1 where epoch = $1 and gone is null \
     and beat >= $2 and (select tourbillon.same_1($3)) \
     returning clock_timestamp(), statement_timestamp(), pg_current_xact_id()::text::bigint, beat";

/// The clock, and the row of a node that has no good beat, if it has one.
pub(super) const ROW: &str = "select clock_timestamp(), d.beat, d.gone is not null \
     from (select) one left join tourbillon.node d on d.epoch = $1 \
     where (select tourbillon.same_1($2))";

/// The clock, and the least number of the open transactions that may have written timers. It comes
/// before the poll, so that the poll sees what a transaction has done that has given its lock back.
/// See [`Complete`].
///
/// All calls that write lock the table before they read the clock. The transactions of users count
/// from there on too, and no others: neither somebody's long transaction on other tables, nor an
/// analysis of this one. The numbers of locks have 32 bits. None of them is below the oldest one
/// that runs, which has 64. The time of the statement was taken before it reads the locks.
///
/// [`Complete`]: crate::store::Complete
pub(super) const OPEN_WRITES: &str = "with locks as materialized ( \
     select l.locktype, l.relation, l.mode, l.virtualtransaction, l.transactionid::text::bigint as number \
     from pg_locks l where l.granted and (l.locktype = 'transactionid' or l.locktype = 'relation' \
     and l.database = (select d.oid from pg_database d where d.datname = current_database())) \
     ), oldest as materialized (select pg_snapshot_xmin(pg_current_snapshot())::text::bigint as number) \
     select statement_timestamp(), (select min(o.number + (n.number - o.number & 4294967295)) \
     from locks t join locks n on n.virtualtransaction = t.virtualtransaction, oldest o \
     where t.locktype = 'relation' and t.relation = 'tourbillon.timer'::regclass \
     and t.mode = 'RowExclusiveLock' \
     and n.locktype = 'transactionid' and n.mode = 'ExclusiveLock')";

/// One statement, so that all of it is of one snapshot. Kinds of rows: 0 the clock, 1 a node, 2 a
/// paused queue, 3 a timer. The clock is read once; as a function in the condition it would be read
/// for each row, and never be a bound of the index. The nodes are read once too: while a
/// transaction stays open, each row of them has as many dead versions as there were beats.
///
/// A node may handle thousands of queues, so their names are sent once: `$13` and `$14` are the
/// lists that this connection has.
///
/// The sum in the conditions of a band is that of the index `timer_survey`, which no other
/// statement can use.
pub(super) const POLL: &str = "with clock as materialized (select clock_timestamp() as now), \
     living as materialized (select d.epoch, d.beat, d.list, d.queues from tourbillon.node d where d.gone is null), \
     me as materialized (select exists (select from living where epoch = $1) as live) \
     select 0, 0::bigint, null::text, (select now from clock), 0::bigint, 0, 0, false, null::text[], 0 \
     where (select tourbillon.same_1($15)) \
     union all \
     select 1, l.beat, null, null, l.epoch, l.list, 0, false, \
     case when not exists (select from unnest($13::bigint[], $14::int[]) k(epoch, list) \
     where k.epoch = l.epoch and k.list = l.list) then l.queues end, 0 from living l \
     union all \
     select 2, 0, q.name, null, 0, 0, 0, false, null, 0 from tourbillon.queue q where q.paused \
     union all \
     select 3, r.n, t.key, t.due, t.gen, t.attempt, t.crashes, t.mine, null, t.bytes \
     from unnest($2::text[], $3::smallint[], $4::timestamptz[], $5::interval[], $6::interval[], $7::bigint[]) \
     with ordinality r(queue, shard, mark, ahead, overdue, seen, n) cross join lateral ( \
     select t.key, t.due, t.gen, t.attempt, t.crashes, t.bytes, \
     coalesce(t.claim = $1 and (select live from me), false) as mine \
     from tourbillon.timer t where t.queue = r.queue and t.shard = r.shard and t.due >= r.mark \
     and t.due < (select now from clock) + r.ahead - r.overdue \
     and (t.claim is null or t.claim = $1 or t.claim not in (select epoch from living)) \
     order by t.due limit r.seen) t \
     union all \
     select 4, b.n, t.queue, t.due, t.timers, 0, 0, false, null, 0 \
     from unnest($8::smallint[], $9::timestamptz[], $10::interval[], $11::interval[], $12::bigint[]) \
     with ordinality b(shard, mark, ahead, overdue, seen, n) cross join lateral ( \
     select t.queue, min(t.due) as due, count(*) as timers from ( \
     select t.queue, t.due from tourbillon.timer t \
     where t.shard + 0::smallint = b.shard and t.due >= b.mark \
     and t.due < (select now from clock) + b.ahead - b.overdue \
     and (t.claim is null or t.claim = $1 or t.claim not in (select epoch from living)) \
     order by t.due limit b.seen) t group by t.queue) t";

pub(super) const CLAIM: &str = "select kind, n, at, number, gen, attempt, due, planned, fails, crashes, payload, \
     statement_timestamp(), meta from tourbillon.claim_1($1, $2, $3, $4, $5, $6, $7, $8, $9) \
     where (select tourbillon.same_1($10))";

pub(super) const CLAIM_EACH: &str = "select kind, n, at, number, gen, attempt, due, planned, fails, crashes, payload, \
     statement_timestamp(), meta, code, error from tourbillon.claim_each_1($1, $2, $3, $4, $5, $6, $7, $8, $9) \
     where (select tourbillon.same_1($10))";

pub(super) const SETTLE: &str = "select n, answer from tourbillon.settle_1($1, $2, $3, $4, $5, $6, $7, $8, false) \
     where (select tourbillon.same_1($9))";

pub(super) const SETTLE_EACH: &str = "select n, answer, code, error \
     from tourbillon.settle_each_1($1, $2, $3, $4, $5, $6, $7, $8) where (select tourbillon.same_1($9))";

pub(super) const DECLARE_GONE: &str = "select tourbillon.declare_gone_1($1, $2, $3) \
     where (select tourbillon.same_1($4))";

pub(super) const OLD_NODES: &str = "select exists (select from tourbillon.node \
     where gone < clock_timestamp() - interval '1 day') where (select tourbillon.same_1($1))";

/// A claim of an epoch that is not in the table counts as none, so the row may go when no claim of
/// it is left, and none can be made by a node that is gone.
pub(super) const FORGET: &str = "delete from tourbillon.node d where d.gone < clock_timestamp() - interval '1 day' \
     and not exists (select from tourbillon.timer t where t.claim = d.epoch) \
     and (select tourbillon.same_1($1))";

pub(super) const LEAVE: &str = "update tourbillon.node set gone = clock_timestamp() where epoch = $1 and gone is null \
     and (select tourbillon.same_1($2))";
