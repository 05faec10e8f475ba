-- Timers of tourbillon-durable, version 1 of the schema.

-- The versions of the crate that may use the tables: from oldest_ok to version, and later ones that
-- know this version.
create table tourbillon.meta (
  one boolean primary key default true check (one),
  version int not null,
  oldest_ok int not null,
  -- By it a process knows these tables again. A backup has the same one.
  identity bigint not null default hashtextextended(gen_random_uuid()::text, 0)
);

create table tourbillon.node (
  epoch bigint primary key,
  name text not null,
  queues text[] not null,
  -- The schedules that its program names: the keys by their queues.
  schedules jsonb not null default '{}',
  -- The number of the list of queues. Whoever has read this list need not read it again.
  list int not null default 0,
  beat bigint not null default 0,
  -- When the last beat was written: for people alone.
  beat_at timestamptz not null default clock_timestamp(),
  joined timestamptz not null default clock_timestamp(),
  -- Never unset. The row stays until no timer has a claim of this epoch.
  gone timestamptz
) with (fillfactor = 50);

create table tourbillon.queue (
  name text collate "C" primary key,
  paused boolean not null default false
);

create table tourbillon.timer (
  queue text collate "C" not null check (octet_length(queue) between 1 and 64),
  key text collate "C" not null check (octet_length(key) between 1 and 512),
  shard smallint not null check (shard between 0 and 63),
  due timestamptz not null check (isfinite(due)),
  -- The first due time, before retries.
  planned timestamptz not null,
  gen bigint not null,
  attempt int not null default 0,
  fails int not null default 0,
  crashes int not null default 0,
  -- The length of the payload and the meta as text, by which nodes and lists bound what they read at one time.
  bytes int not null default 0,
  -- The node that holds it, live or not, and since when.
  claim bigint,
  claimed timestamptz,
  -- It was cancelled while it was held.
  cancelled boolean not null default false,
  -- It was scheduled while it was held: due, planned, bytes and payload are those of the timer that follows the run.
  follows boolean not null default false,
  payload jsonb not null,
  -- What is said about it beside the payload.
  meta jsonb check (jsonb_typeof(meta) = 'object'),
  primary key (queue, key),
  check ((claim is null) = (claimed is null)),
  check (claim is not null or not (cancelled or follows)),
  check (not (cancelled and follows))
) with (
  -- Each timer is changed once where it lies, by its claim, which needs as much room again. Without the room
  -- the claim would move it, and write all indexes: that takes three times as long.
  fillfactor = 45,
  autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

-- The queue leads: the backlog of one queue does not stand at the head of another one's poll.
create index timer_due on tourbillon.timer (queue, shard, due);

-- By it a node finds out which of many queues have anything due. The shard leads, so that writers whose timers are due
-- at about one time do not all write one page. The sum keeps the planner from this index where a statement names a
-- queue: while all timers are one queue's, both indexes seem to be as good.
create index timer_survey on tourbillon.timer ((shard + 0::smallint), due);

create table tourbillon.dead (
  -- Given by the function letter_1.
  id bigint primary key,
  queue text collate "C" not null,
  key text collate "C" not null,
  gen bigint not null,
  planned timestamptz not null,
  at timestamptz not null,
  attempt int not null,
  fails int not null,
  crashes int not null,
  error text not null,
  -- As in a timer.
  bytes int not null default 0,
  payload jsonb not null,
  meta jsonb
);
create index dead_queue on tourbillon.dead (queue, id);

insert into tourbillon.meta (version, oldest_ok) values (1, 1);

-- What people read. No program of the crate does.

create view tourbillon.timers as
select t.queue, t.key, t.due,
  case
    when n.epoch is not null then 'running'
    when exists (select from tourbillon.queue q where q.name = t.queue and q.paused) then 'paused'
    when jsonb_typeof(t.meta -> 'cron') = 'object' and t.meta -> 'cron' ? 'expression'
      and t.meta #> '{cron,paused}' = 'true' then 'paused'
    when t.due <= clock_timestamp() then 'overdue'
    else 'waiting'
  end as state,
  n.name as node,
  case when n.epoch is not null then t.claimed end as running_since,
  t.cancelled,
  t.follows and n.epoch is not null as follows,
  case when n.epoch is null and t.follows then 0 else t.attempt end as attempt,
  case when n.epoch is null and t.follows then 0 else t.fails end as fails,
  case when n.epoch is null and t.follows then 0 else t.crashes end as crashes,
  t.payload, t.meta
from tourbillon.timer t left join tourbillon.node n on n.epoch = t.claim and n.gone is null
where n.epoch is not null or not t.cancelled;

create view tourbillon.dead_letters as
select d.id, d.queue, d.key, d.at as given_up, d.attempt, d.fails, d.crashes, d.error,
  exists (select from tourbillon.timers t where t.queue = d.queue and t.key = d.key) as has_timer,
  d.payload, d.meta
from tourbillon.dead d;

create view tourbillon.queues as
select n.queue,
  exists (select from tourbillon.queue q where q.name = n.queue and q.paused) as paused,
  (select count(*) from tourbillon.timers t where t.queue = n.queue and t.state <> 'running') as pending,
  (select min(t.due) from tourbillon.timers t where t.queue = n.queue and t.state <> 'running') as first_due,
  (select count(*) from tourbillon.timers t where t.queue = n.queue and t.state = 'running') as running,
  (select count(*) from tourbillon.dead d where d.queue = n.queue) as dead
from (
  select t.queue from tourbillon.timer t union select d.queue from tourbillon.dead d
  union select q.name from tourbillon.queue q where q.paused
) n;

create view tourbillon.nodes as
select n.epoch as id, n.name, n.queues, n.joined, clock_timestamp() - n.beat_at as silent_for, n.gone
from tourbillon.node n;

-- Whatever a user of SQL has written into the meta, it is shown as text.
create view tourbillon.schedules as
select t.queue, t.key, t.meta #>> '{cron,expression}' as expression, t.meta #>> '{cron,zone}' as zone, t.state,
  case when t.due < '9999-12-31 23:59:59.999999+00' then t.due end as next,
  t.meta #>> '{cron,last,at}' as last, t.meta #>> '{cron,last,ended}' as last_ended,
  t.meta #>> '{cron,last,outcome}' as last_outcome, t.meta #>> '{cron,revision}' as revision,
  coalesce(t.meta #> '{cron,paused}' = 'true', false) as paused,
  -- A program has named it, and none that runs does.
  coalesce(t.meta #> '{cron,declared}' = 'true', false) and not exists (
    select from tourbillon.node n where n.gone is null and n.schedules -> t.queue ? t.key) as unnamed
from tourbillon.timers t where jsonb_typeof(t.meta -> 'cron') = 'object' and t.meta -> 'cron' ? 'expression';
